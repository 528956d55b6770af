"""Live: following a running engine over HTTP, what a foreign server's metrics tell, load, and a demonstration."""
