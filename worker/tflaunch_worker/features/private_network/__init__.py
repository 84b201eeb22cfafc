"""Give the tasks of a host a network that no other process reaches."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(network="tflaunch_worker.features.private_network.namespaces:open_network")
