"""The dashboard: pages and figures over step traces, simulated, measured and live."""
