"""Lookup speculation: guesses at the tokens to come that cost no model. See `drafter`."""
