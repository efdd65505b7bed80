from . import (
    microbatching as microbatching,
)
