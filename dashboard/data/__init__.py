"""What figures draw: runs, the part of them in view, and that part in as many pieces as a screen has room for."""
