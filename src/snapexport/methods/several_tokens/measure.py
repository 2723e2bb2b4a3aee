"""Chooses where decode writes, in comparisons: a token at a time, in the graphs for several."""

from snapexport.compare.method import Feeder, MethodMeasure
from snapexport.contract.manifest import Manifest
from snapexport.methods.several_tokens.run import SlotPositions


class SeveralTokensMeasure(MethodMeasure):
    """The positions of all cache slots, as the runtime keeps them."""

    def feeder(self, manifest: Manifest, prompt_length: int) -> Feeder | None:
        places = SlotPositions(manifest.geometry, manifest.batch)
        for slot in range(manifest.batch):
            places.fill(slot, prompt_length)
        return places


MEASURE = SeveralTokensMeasure()
