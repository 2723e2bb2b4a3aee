"""The vocabulary of the vault: its keys, its values and the words of its filler prose.

Every word is a common English one and belongs to one list only, so that a key never
occurs among the values and neither occurs in the prose between the entries.
"""

from __future__ import annotations

_ANIMALS = """
ant ape bat bear beaver bee beetle bison boar buck bug bull camel carp cat cobra cod colt
cow coyote crab crane cricket crow cub cuckoo deer dingo dog donkey dove duck eagle eel
elk emu ewe falcon fawn ferret finch fly foal fox frog gecko gibbon giraffe goat goose
gull hamster hare hawk hen heron hippo hog hornet horse hound ibex ibis jackal jaguar jay
kitten koala lamb lark lemur leopard lion lizard llama lobster locust lynx magpie mantis
mare marten mink mole monkey moose moth mouse mule newt octopus orca osprey ostrich otter
owl ox oyster panda parrot pelican penguin pig pigeon pike pony poodle puffin puma pup
python quail rabbit raccoon ram rat raven robin rook rooster salmon seal shark sheep
shrimp sloth slug snail snake sparrow spider squid squirrel stag stork swallow swan tiger
toad trout tuna turkey turtle viper vole vulture walrus wasp weasel whale wolf wombat worm
wren yak zebra
"""

_NAMES = """
Ada Adam Alan Alice Amy Anna Arthur Ben Bill Bob Carl Clara Dan David Diana Ella Emma Eric
Eva Felix Frank Fred George Greta Hans Harry Helen Henry Hugo Ian Ida Ivan Jack James Jane
John Julia Karl Kate Laura Leo Lisa Lucy Marco Maria Mark Martin Mary Max Mia Nina Nora
Oscar Otto Paul Peter Ralph Rita Rosa Ruth Sam Sara Simon Sofia Tom Vera
"""

_PLACES = """
Athens Berlin Bern Boston Cairo Chile Cuba Delhi Dover Egypt France Ghana Greece India
Iran Italy Japan Kenya Lima London Madrid Malta Milan Nepal Norway Oslo Paris Peru Rome
Spain Texas Tokyo Turin Wales
"""

_VALUES = """
acorn amber anchor apple apron arrow ash axe bag ball balm banana band banjo barley barrel
basil basket bead bean bell belt berry birch blade blue board boat bolt bone book boot
bottle bow bowl box brass bread brick bridge bronze broom brown brush bucket butter button
cable cake candle cane canoe cap card cart cedar chain chair chalk cheese cherry chest
cider clay cloak clock cloth clover coal coat cocoa coffee coin comb compass copper coral
cord cork cotton cream crown crystal cup curtain dagger desk dice dish drum elm ember
emerald engine fan feather fern fiddle fig flag flint flour flower flute fork garlic
garnet gate gem ginger glass globe glove glue gold grain grape grass green grey guitar
hammer harp hat helmet holly honey hook horn ink iron ivory ivy jade jar jasmine jelly
jewel juice kettle key knife ladder lamp lantern lead leaf leather lemon lens letter lily
linen lock maple marble mask match melon milk mint mirror mitten moss mug nail necklace
needle net nickel nut oak oat oil olive onion opal orange organ paint paper peach pear
pearl pebble pen pepper petal piano pillow pine pink pipe plate plum pot powder purple
purse quartz quill raft rag reed ribbon rice ring rock rod root rope rose ruby rug saddle
salt sand satin scarf scroll shell shield shoe silk silver slate soap spade spoon steel
stone sugar sword table tea thimble tin torch towel umbrella vase velvet violet violin
wagon wax wheat wheel willow window wine wire wood wool yellow zinc
"""

KEYS: tuple[str, ...] = tuple((_ANIMALS + _NAMES + _PLACES).split())
VALUES: tuple[str, ...] = tuple(_VALUES.split())

NOUNS: tuple[str, ...] = tuple(
    "rain wind snow harbour road hill valley forest garden house street field".split()
)
ADJECTIVES: tuple[str, ...] = tuple("old quiet cold long dark small bright empty".split())
VERBS: tuple[str, ...] = tuple("fell slept stood waited rested lay faded turned".split())
PLACINGS: tuple[str, ...] = tuple("on near under over behind beside".split())
FRAME: tuple[str, ...] = tuple("Register of the vault What is kept for The".split())

ALL_WORDS: tuple[str, ...] = KEYS + VALUES + NOUNS + ADJECTIVES + VERBS + PLACINGS + FRAME
