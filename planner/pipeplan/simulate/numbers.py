"""How the simulator numbers what happens.

Every action has a number, device by device in list order. A *signal* is something that an action may wait for:

::

    signal i         action i has ended
    signal n + i     the tensor that action i sent has arrived          (n actions)

    0F1 ──ended──▶ 0B1         same device: the action's end
     └──arrived──▶ 1F1         other device: the tensor's arrival
"""

NOTHING = -1
"""No action, no channel."""

SHOWN = 8
"""How many faults an error spells out."""
