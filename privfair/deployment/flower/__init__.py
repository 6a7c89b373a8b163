"""A deployment on Flower: apps, nodes, processes, and what guards them."""
