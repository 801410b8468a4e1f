"""Plain words and names to make problems of."""

from __future__ import annotations

NAMES = ("Ada", "Ben", "Chen", "Dina", "Emre", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mara", "Nils")

_LISTED = """
anchor apple apron arrow autumn bakery ball bamboo basket beach bell bench berry bicycle blanket boat book bottle
box branch bread brick bridge brush bucket button cabin cactus candle canoe carpet castle chair chalk cheese cherry
circle clay clock cloud coat coffee comet copper coral corn cotton cradle crystal cup curtain desk diamond dish
dolphin door dragon drum eagle earth elbow engine envelope farm feather fence ferry field fig finger fire flag
flute forest fork fountain frame garden garlic gate ginger glass glove grape grass guitar hammer harbour hat hill
honey hook horizon house ice ink iron island ivory jacket jam jar jewel juice kettle key kitchen kite knot ladder
lake lamp lantern leaf lemon letter lily lime linen lion lock magnet map maple marble market meadow melon mill
mirror moon moss motor mountain museum needle nest net nut oak oar ocean olive onion orange orchard otter oven
owl paint palace palm paper parrot path peach pear pebble pencil pepper piano pillow pine planet plum pocket pond
potato quarry quill rabbit radio rain raven ribbon rice river robin rocket roof root rope rose saddle sail salmon
salt sand scarf school seed shell ship shoe silk silver sky snow soap sofa spoon spring square stairs star stone
storm stream sugar summer swan table tailor tea temple tent thunder tiger toast tower train tree tulip tunnel
turtle umbrella valley vase velvet village violin wagon wall walnut water wave wheat wheel willow window winter
wolf wool yard zebra
"""
WORDS = tuple(_LISTED.split())
