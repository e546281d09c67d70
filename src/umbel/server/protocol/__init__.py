"""What goes over the wire, as msgspec structs: the only description of it, from which bodies are
decoded, answers are encoded and the OpenAPI document is made.
"""
