"""A simulated run against the measured one that it forecasts (`traces.validation`)."""
