"""Programs over many items: streamed in, journaled, resumed after anything, written in order."""
