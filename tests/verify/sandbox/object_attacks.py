"""All programs whose tests use their objects: honest ones, which must pass, and cheats, which must not."""

from __future__ import annotations

from verify.sandbox.object_cases import (
    cheats_equality,
    cheats_helpers,
    cheats_objects,
    cheats_protocol,
    honest_classes,
    honest_containers,
    honest_errors,
    honest_functions,
    honest_iteration,
)

_HONEST = (honest_classes, honest_containers, honest_errors, honest_functions, honest_iteration)
_CHEATS = (cheats_equality, cheats_helpers, cheats_objects, cheats_protocol)

HONEST = [case for module in _HONEST for case in module.CASES]
CHEATS = [case for module in _CHEATS for case in module.CASES]
