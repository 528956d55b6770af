"""The tour: five short stops, each a tiny run of the real scheduler."""
