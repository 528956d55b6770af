"""The board: panels over some runs with one cursor and one view, and the keys and buttons that move them."""
