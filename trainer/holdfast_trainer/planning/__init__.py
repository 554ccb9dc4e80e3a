"""The needs and costs of a layout, computed from its configuration: without torch, ranks or a GPU."""
