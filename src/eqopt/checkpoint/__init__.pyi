from ._file import (
    CheckpointError as CheckpointError,
    check_layout as check_layout,
    layout as layout,
    load as load,
    read_metadata as read_metadata,
    save as save,
)
from ._merge import merge as merge
