"""
The package's environments in gymnasium. Importing this module registers them; nothing but gymnasium's registration is
imported.
"""

from __future__ import annotations

RESET_CLIFF = "sb3_dualqdm/ResetCliff-v0"
VALUE_FLOW_GRID = "sb3_dualqdm/ValueFlowGrid-v0"


def register() -> None:
    """Register the environments; a second call does nothing."""
    from gymnasium.envs import registration

    for env_id, entry_point, max_steps in (
        (RESET_CLIFF, "sb3_dualqdm.tabular.environments:ResetCliffEnv", None),  # its horizon ends it
        (VALUE_FLOW_GRID, "sb3_dualqdm.tabular.environments:ValueFlowGridEnv", 100),
    ):
        if env_id not in registration.registry:
            registration.register(id=env_id, entry_point=entry_point, max_episode_steps=max_steps)


register()
