"""Lists the followers that an executor has, beside its rows. A further one is a row here."""

from collections.abc import Callable

from snapexport.runtime.engine.followers.follower import SlotFollower
from snapexport.runtime.engine.followers.mtp_drafts import MtpDrafts
from snapexport.runtime.engine.followers.slot_positions import SlotPositions
from snapexport.runtime.engine.loaded import Loaded

FOLLOWERS: tuple[Callable[[Loaded], SlotFollower | None], ...] = (SlotPositions.of, MtpDrafts.of)
"""Each makes a follower, or None where the build has nothing to follow."""
