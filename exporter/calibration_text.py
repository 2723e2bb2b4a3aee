"""A text of many kinds, which a model reads before its weights are rounded (`inputs.py`)."""

TEXT = '''\
The ferry left at half past six, an hour later than the board had promised, and by then most of the
passengers had given up their places on deck. Only an old man with a paper bag of cherries stayed at
the rail. He ate slowly and threw the stones, one after another, at the gulls. "You will miss," said
the girl who had been watching him. "I always miss," he said. "That is why they still come."

The history of the town begins with salt. In the twelfth century a spring was found below the hill,
and within two generations there were eighty huts in which women boiled brine day and night. The
forest disappeared, the bishop grew rich, and in 1348 the plague arrived on the same road as the
merchants. When the mines farther south were opened, prices fell by a third, and the council voted
to build a wall instead of a harbour; historians have argued about that decision ever since.

## Installing the service

1. Download the archive for your system and unpack it. Do not run the installer as root.
2. Open `config.toml` and set `listen = "127.0.0.1:8080"`. The default, `0.0.0.0`, accepts
   connections from every network, which is rarely what you want.
3. Start it with `./server --config config.toml`. If the port is taken, the process exits with
   status 2 and prints the name of the other program.

Note: the cache is kept for 24 hours. To empty it sooner, send `SIGHUP` or delete the folder `tmp/`.

def merge(left, right):
    """Merge two sorted lists into one."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]

#include <stdio.h>
int main(int argc, char **argv) {
    long sum = 0;
    for (int k = 1; k < argc; k++) sum += strtol(argv[k], NULL, 10);
    printf("%d numbers, sum %ld\\n", argc - 1, sum);
    return 0;
}

{"id": 4711, "name": "Garden chair", "price": 39.90, "tags": ["wood", "outdoor"], "stock": null}

SELECT city, COUNT(*) AS orders FROM sales WHERE year = 2021 GROUP BY city ORDER BY orders DESC;

Question: What is the difference between weather and climate?
Answer: Weather is the state of the air at a certain place and time, such as rain in Lisbon this
morning. Climate is the average of weather over many years. A cold week does not show that a climate
is cold, just as one short person does not make a nation small.

Question: A train travels 180 km in 2.5 hours. How fast is it on average?
Answer: Divide the distance by the time: 180 / 2.5 = 72. The train travels at 72 km/h.

User: Could you rewrite this sentence so that it sounds more polite? "Send me the report."
Assistant: Of course. For example: "Could you please send me the report when you have a moment?"
User: Thanks! And in a single word, what is the opposite of "generous"?
Assistant: Stingy.

Let f be a continuous function on the closed interval [a, b] with f(a) < 0 < f(b). Then there is a
point c in (a, b) such that f(c) = 0. To prove it, let c be the supremum of all x with f(x) <= 0. If
f(c) were positive, f would be positive near c, and c would not be the least upper bound.

Blood leaves the heart through the aorta and returns through two large veins. An adult's heart beats
about 100,000 times a day and moves some 7,000 litres. Beta blockers slow it down; caffeine, fever
and fear do the opposite. Patients with chest pain that lasts longer than fifteen minutes should
call an emergency number at once.

Dear Ms. Okafor, thank you for your order of 3 March. Unfortunately two of the five items are out of
stock until the end of the month. We can ship the rest today, or everything together on the 29th;
please let us know which you prefer. We apologize for the inconvenience. Kind regards, Tom Beale

| month | rainfall, mm | visitors |
|---|---:|---:|
| January | 81 | 1,204 |
| April | 47.5 | 3,960 |
| July | 12 | 18,733 |

The minister denied on Tuesday that the contract had been signed before the election. "There was no
agreement, and there was no meeting," she told reporters. Opposition leaders called for an inquiry,
while shares of the company fell 4.2 percent in early trading.

And the king said unto his servants, Go ye into the hills, and bring me him that speaketh of the
flood; for three nights have I dreamed of water, and there is none among my wise men that can say
whether it be the end of my house or the beginning of another.

Der Zug nach Leipzig hat heute etwa zehn Minuten Verspaetung. Wir bitten um Entschuldigung. Le chat
dort sur la chaise pendant que la pluie tombe dans le jardin. Los libros que compramos ayer todavia
no han llegado, pero la tienda promete entregarlos antes del viernes.

TODO: see https://example.org/docs?page=2#top, mail bob@example.com, call +1 555 0134 (until 5 pm).
Haha, ok, see you there!! lol... bring snacks & the blue umbrella :-)
'''
