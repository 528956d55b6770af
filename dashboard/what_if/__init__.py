"""The What-if page's parts: the form as a value, its cards, its runs."""
