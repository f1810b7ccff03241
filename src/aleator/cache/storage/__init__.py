"""Where keys, values and states are kept: NumPy arrays on the CPU, torch's tensors on devices."""

from aleator.cache.storage.layer import TYPES as TYPES
from aleator.cache.storage.layer import LayerStorage as LayerStorage
from aleator.cache.storage.layer import StateArrays as StateArrays
from aleator.cache.storage.layer import StorageType as StorageType
from aleator.cache.storage.layer import storage_type as storage_type
from aleator.cache.storage.storage import Storage as Storage
from aleator.cache.storage.storage import side_bytes as side_bytes
from aleator.cache.storage.storage import state_arrays as state_arrays
