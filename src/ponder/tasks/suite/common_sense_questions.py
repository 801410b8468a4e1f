"""Common sense: how things, bodies and people behave. Each question has one option that holds up, given first here."""

from __future__ import annotations

import random

from ponder.tasks.split import stable_hash
from ponder.tasks.suite.question import SuiteQuestion, shuffled_choice_question

# kind, question, options: the right one first
QUESTIONS: tuple[tuple[str, str, str], ...] = (
    ("matter", "You leave an ice cube on a warm stove plate. What do you find there an hour later?",
     "Nothing, or a dry mark | A larger ice cube | A stone | A colder plate than before"),
    ("matter", "A wet towel hangs on a line on a windy, sunny day. What happens to the water in it?",
     "It goes into the air | It turns into cloth | It flows up the line | It freezes"),
    ("matter", "Which of these can you pour from a jug into a glass?",
     "Milk | A brick | A shadow | A pencil"),
    ("matter", "You stir a spoonful of salt into a pot of warm water until you cannot see it. What is true?",
     "The water now tastes salty | The salt no longer exists | The pot has become lighter | The water has "
     "turned to salt"),
    ("matter", "A glass bottle full of water is left in the freezer overnight, tightly closed. What is likely?",
     "The bottle cracks | The bottle shrinks and stays whole | The water stays liquid | The bottle floats up"),
    ("matter", "You want to know whether an egg is boiled or raw without breaking it. What helps?",
     "Spinning it on the table | Asking its colour | Weighing the box | Turning on the light"),
    ("matter", "Which of these will a kitchen magnet pick up?",
     "An iron nail | A wooden spoon | A paper cup | A rubber band"),
    ("matter", "A candle burns for two hours. How does it compare with before?",
     "It is shorter | It is longer | It is wetter | It is exactly the same"),
    ("matter", "You cover a burning candle with a glass jar. What happens soon?",
     "The flame goes out | The flame grows for hours | The jar fills with water | The candle gets longer"),
    ("matter", "Sugar, sand, oil and vinegar are each stirred into water. Which one floats on top in a layer?",
     "Oil | Sugar | Sand | Vinegar"),
    ("matter", "A metal spoon and a wooden spoon stand in the same hot soup. Which handle becomes too hot to hold "
     "first?",
     "The metal one | The wooden one | Neither can get hot | The one that is longer, whatever it is made of"),
    ("matter", "On a cold day you breathe on a window pane. What do you see?",
     "Mist on the glass | The glass bends | Smoke from the glass | The pane gets darker like ink"),
    ("motion", "You let go of a stone and a soap bubble from a balcony at the same time. Which is first on the ground?",
     "The stone | The bubble | Neither ever falls | Always both together"),
    ("motion", "A ball is rolled gently across a thick carpet and across smooth ice with the same push. Where does "
     "it go further?",
     "On the ice | On the carpet | Exactly as far on both | It goes backwards on both"),
    ("motion", "A bus brakes hard. What happens to the people standing in it?",
     "They lean forward | They lean backward | They rise to the roof | Nothing at all"),
    ("motion", "A helium balloon slips out of a child's hand outdoors. Where is it a minute later?",
     "High in the air | In the child's shoe | At the bottom of the pond | Exactly where the hand was"),
    ("motion", "You stack a large heavy box on top of a small empty paper box. What is likely?",
     "The paper box is crushed | The heavy box becomes empty | The paper box lifts the heavy one | Both boxes melt"),
    ("motion", "A full glass stands at the edge of a table, half of its base over the edge and more. What happens if "
     "you let go?",
     "It falls | It stays in the air | It slides onto the table by itself | It becomes empty but stays"),
    ("motion", "You pull one end of a rope whose other end is tied to a toy cart. What does the cart do?",
     "It comes towards you | It rolls away from you | It does not move, since ropes cannot pull | It turns into rope"),
    ("motion", "You push the end of a loose piece of string that lies on a table. What happens?",
     "It crumples near your finger | The far end moves away as with a stick | The table moves | It stands upright"),
    ("motion", "Two children sit on a seesaw, one on each end. The heavier one sits down first. What does the "
     "lighter child's end do?",
     "It stays up | It sinks to the ground | It breaks the other end | It moves sideways"),
    ("motion", "A cyclist stops pedalling on a flat road. What happens next?",
     "The bicycle slowly comes to a stop | The bicycle speeds up | The bicycle rolls on for ever | The bicycle "
     "starts to roll backwards at once"),
    ("light", "You stand with the setting sun behind you. Where is your shadow?",
     "In front of you | Behind you | Above you | You have none until it is dark"),
    ("light", "A room has no windows and the lamp is off. What can you see of a red ball on the floor?",
     "Nothing | Only its red colour | Only its shadow | It glows white"),
    ("light", "You hold up your left hand before a mirror. Your reflection holds up a hand. On which side do you "
     "see it?",
     "On your left | On your right | Below the mirror | Behind your back"),
    ("light", "At which time of a sunny day is your shadow the shortest?",
     "Around noon | At sunrise | At sunset | It never changes"),
    ("light", "Lightning flashes over a distant hill. When do you hear its thunder?",
     "After the flash | Before the flash | Only if you close your eyes | On the next day"),
    ("light", "Someone behind a closed wooden door calls your name. What is true?",
     "You may hear but not see the person | You can see but not hear the person | You can do neither, since "
     "doors stop sound entirely | You can see through the door if you listen"),
    ("body", "You have run up ten flights of stairs. What do you notice?",
     "Your heart beats faster | Your heart has stopped | You no longer need to breathe | You have become taller"),
    ("body", "Which of these would you best not touch with a bare hand?",
     "A pan straight from the oven | A cold spoon | A dry towel | A wooden table"),
    ("body", "A man wears thick gloves. What becomes harder for him?",
     "Threading a needle | Listening to music | Smelling soup | Looking out of the window"),
    ("body", "You have a bad cold and a blocked nose. What is hardest to notice?",
     "The smell of toast | The colour of a wall | The sound of a bell | The weight of a bag"),
    ("body", "Why do people shiver in the cold?",
     "Their muscles make heat | To frighten the snow | To become lighter | To hear better"),
    ("body", "A child spins round and round, then stops. What is the child likely to feel?",
     "Dizzy | Hungry for stones | Much older | Nothing, since stopping ends all feeling"),
    ("body", "Someone has not slept for two nights. What is most likely?",
     "They nod off in a warm room | They run faster than ever | They need no food any more | They grow a second "
     "shadow"),
    ("body", "You bite into a lemon. What does your face most likely do?",
     "It screws up | It turns green | It falls asleep | It stays longer than your body"),
    ("living", "A potted plant stands in a dark cupboard without water for two months. What will you find?",
     "A withered plant | A plant with new flowers | A larger pot | A tree"),
    ("living", "Which of these needs food to go on?",
     "A sparrow | A kettle | A cloud | A statue"),
    ("living", "A hen sits on an egg for three weeks. What may come out of it?",
     "A chick | A puppy | A grown cow | Another hen of the same age"),
    ("living", "You find wet, muddy paw prints leading from the garden door to the sofa. What is the best explanation?",
     "The dog came in from outside | The sofa went into the garden | It rained on the sofa only | Someone "
     "painted the ceiling"),
    ("living", "A goldfish is lifted out of its bowl and laid on a dry table. What does it need most?",
     "Water | A pillow | Sunglasses | A walk"),
    ("living", "Leaves turn brown and fall from the trees. In which season does this mostly happen in cool countries?",
     "Autumn | Spring | Midsummer | Only at New Year"),
    ("living", "A seed is planted. Which comes first?",
     "A root | A ripe fruit | A fallen log | A bird's nest in its crown"),
    ("living", "Which animal would you expect to meet at the bottom of the sea?",
     "A crab | A camel | A pigeon | A squirrel"),
    ("people", "Tom hides a biscuit in a drawer and goes out. While he is away, Eva moves it to a tin. Where will "
     "Tom look first?",
     "In the drawer | In the tin | Under Eva's chair | Outside the house"),
    ("people", "Rosa opens a present, smiles with her mouth only, and puts it away without a word. What is most "
     "likely?",
     "She does not much like it | It is what she wished for most | She has not noticed it | She bought it herself"),
    ("people", "A man stands in the rain and holds a closed umbrella that he just bought. Passers-by are puzzled. Why?",
     "He gets wet though he need not | Umbrellas are forbidden | Rain cannot be seen | He is too dry"),
    ("people", "Your friend whispers to you in a library. Why?",
     "Not to disturb others | Because books can hear | Because loud words break windows | To be heard by everybody"),
    ("people", "A waiter brings you soup that you did not order. What is the sensible thing to do?",
     "Tell the waiter | Hide under the table | Pay for all guests | Put the soup in your pocket"),
    ("people", "Lea tells Max that the shop closes at six. It is half past six. Max believes her. What will he think "
     "of the shop?",
     "It is closed | It is just opening | It does not exist | It has moved to Lea's house"),
    ("people", "Two neighbours each want the last seat on a bus. One is very old and uses a stick. Whom do most "
     "people expect to sit?",
     "The old one | The younger one | Both on each other | The driver"),
    ("people", "Someone says with a sigh: 'Great, another flat tyre.' What do they mean?",
     "They are annoyed | They collect flat tyres | They are very happy | They do not know what a tyre is"),
    ("people", "A boy who broke a vase stands before it when his mother comes in, so that she cannot see it. What "
     "does he want?",
     "That she does not notice | That she buys more flowers | That she takes his picture | That she repairs the wall"),
    ("plans", "You want to bake a cake tonight and have no eggs. The shop closes in ten minutes. What first?",
     "Go to the shop | Wash the cake tin | Bake the cake | Invite guests for last week"),
    ("plans", "Which comes first when you put on footwear for a walk?",
     "Socks | Shoes | Tying the laces | Wiping off the mud from the walk"),
    ("plans", "You must carry twelve eggs home on a bicycle. What is the best container?",
     "An egg box in a basket | Your coat pocket | A paper bag on the handlebar | A sieve on your head"),
    ("plans", "The top shelf is out of your reach. What is the safest way to get a jar from it?",
     "Use a step ladder | Stack books on a swivel chair | Throw stones at the jar | Shake the shelf until it falls"),
    ("plans", "You have to be at the station at eight; the walk takes forty minutes. When must you leave at the "
     "latest?",
     "At twenty past seven | At eight | At twenty to nine | At half past seven"),
    ("plans", "You painted a bench this morning and the paint is still wet. What should you put on it?",
     "A note that says so | A cushion | Your best coat | A sleeping cat"),
    ("plans", "You want to know how a film ends without being told by anyone. What must you do?",
     "Watch it to the end | Watch its first minute | Look at the poster | Buy popcorn"),
)  # fmt: skip


def suite_questions() -> list[SuiteQuestion]:
    """In the order written; the options' order is fixed by the question."""
    out = []
    for kind, question, options in QUESTIONS:
        right, *wrong = options.split(" | ")
        out.append(shuffled_choice_question(kind, question, right, wrong, random.Random(stable_hash(question))))
    return out
