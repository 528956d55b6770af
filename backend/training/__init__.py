"""How the embedded model was made: its text, its tokenizer and its training (``python -m backend.training``)."""
