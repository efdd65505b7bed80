from ._check import (
    LAWS as LAWS,
    LawError as LawError,
    check_law as check_law,
    check_laws as check_laws,
)
