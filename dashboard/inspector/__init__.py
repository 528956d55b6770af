"""The step inspector: what one step's batch looks like, tensor by tensor."""
