"""The dashboard's own runs: asked for, queued, computed in bounded workers, kept for a while."""
