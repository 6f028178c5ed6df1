"""A slim decoder for the Llama lineage on gateup's own products with packed weights."""
