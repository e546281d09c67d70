"""From a name or a path to weights: finding, reading (GGUF, safetensors), filling a decoder."""
