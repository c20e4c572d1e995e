"""A cluster as a graph of directed links with one deterministic route for every pair of devices.

``parse_topology`` reads a description, ``Topology.routes`` gives the links of messages, ``describe`` summarises.
"""
