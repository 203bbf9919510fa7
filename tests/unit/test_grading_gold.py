"""Golds as the data sets hold them: what is cleaned, and that their plain values are credited."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_suite.grading import clean_gold, grade


@pytest.mark.parametrize(
    ("gold", "cleaned"),
    [
        ("11 ", "11"),
        (r"$4 \pi$", r"4 \pi"),
        ("$$r=7.00$$", "r=7.00"),
        (r"$\boxed{\frac{16}{7}}$", r"\frac{16}{7}"),
        (r"The answer is \boxed{42}.", "42"),
        ("\x0crac{36}{13}", r"\frac{36}{13}"),
        ("118掳T", "118°T"),
        ("12cm虏", "12cm^2"),
        ("90Â°", "90°"),
        ("鲁迅", "鲁迅"),  # a name, not a broken exponent
        (r"{8}{5} \pi", r"\frac{8}{5} \pi"),
        (r"\frac{8}{5} \pi", r"\frac{8}{5} \pi"),
        (r"=\frac{7}{4}", r"\frac{7}{4}"),
        ("$=(4,0)$", "(4,0)"),
        (r"\[g(x)=(x + 4)^2 - 5\].", "g(x)=(x + 4)^2 - 5"),
        (r"8\sqrt{3}{squareinches}", r"8\sqrt{3} squareinches"),
        (r"Volume $=904.78 \mathrm{~cm}^{3}$", r"Volume =904.78 \mathrm{~cm}^{3}"),
        ("Janet sells 16 - 3 - 4 = 9 eggs.\n#### 18", "18"),
        ("C\nD", "C\nD"),
        ("$5", "$5"),  # money
        (r"\$5", r"\$5"),
        ("142.0", "142.0"),
        ("['7.02 \\\\times 10^5\\n']", r"7.02 \times 10^5"),
        ("", ""),
    ],
)
def test_cleaning(gold: str, cleaned: str) -> None:
    assert clean_gold(gold) == cleaned
    assert clean_gold(cleaned) == cleaned


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=100))
def test_cleaning_never_raises(gold: str) -> None:
    clean_gold(gold)


# Every decorated form of gold that MathVerse, MathVision, MathVista and AMC hold, with plain answers to it.
CREDITED = [
    ("11 ", "11"),
    (r"$\frac{90}{23}^{\circ}$", r"\frac{90}{23}"),
    (r"$\boxed{\frac{121}{180}}$", "121/180"),
    ("\x0crac{36}{13}", "36/13"),
    ("69{degrees}", "69°"),
    (r"\frac{360}7", "360/7"),
    ("45^2", "2025"),
    ("1:2", "1 : 2"),
    (r"8\sqrt{3}{squareinches}", r"8\sqrt{3}"),
    (r"\frac{3}{4}\pi{inches}", r"\frac{3\pi}{4}"),
    (r"$\pi-\tan ^{-1}\left(\frac{1}{d}\right)$", r"\pi-\arctan\frac{1}{d}"),
    ("2191.7 metres", "2191.7 m"),
    (r"S 23.5 ^\circ W", "S23.5°W"),
    (r"315^\circT", "315° T"),
    (r"230 ^\circ T", r"230^\circ"),
    ("118掳T", "118°T"),
    ("35掳", "35"),
    (r"Circumference $=50.27 \mathrm{~cm}$", "50.27"),
    (r"Circumference $=50.27 \mathrm{~cm}$", "C = 50.27 cm"),
    (r"$C=40.84 \mathrm{~cm}$", "40.84"),
    (r"Area $=\frac{121 \pi}{4} \mathrm{~m}^{2}$", r"\frac{121\pi}{4}"),
    (r"Area of sector $=6 \pi \mathrm{cm}^{2}$", r"6\pi \text{ cm}^2"),
    ("$5=s$", "5"),
    ("$5=s$", "s = 5"),
    (r"\frac{1225\pi }{2} \text { units }^2", r"\frac{1225\pi}{2}"),
    (r"56.55 units $^{3}$", "56.55"),
    ("Volume $=452.389$ cubic units", "452.389"),
    (r"S.A. of rectangular prism $=4371.46 \mathrm{~mm}^{2}$", "4371.46"),
    (r"$\mathrm{SA}=3298.67 \mathrm{~cm}^{2}$", "3298.67"),
    (r"Surface area $=2 \pi(R+r)(L+R-r)$ square units", r"2\pi(R+r)(R+L-r)"),
    ("Weekly water intake $=15.5$ Litres", "15.5 L"),
    (r"216.\mathrm{cm}^2", "216"),
    ("$1690cm^2$", "1690 cm²"),
    (r"12x^2+144x+384 \mathrm{m}^3", "12x^2+144x+384"),
    (r"\frac{5\left(5x+7\right)}{2x+3} units", r"\frac{25x+35}{2x+3}"),
    ("$10km / h$", "10 km/h"),
    (r"$13 \%$", "13%"),
    ("y=-2 x+5", "5-2x"),
    (r"$y+3=\frac{3}{4}(x-2)$", r"y=\frac{3}{4}(x-2)-3"),
    ("$x^{2}+y^{2}=49$", "y^2+x^2=49"),
    (r"\frac{x^2}{81}+\frac{y^2}{9}=1", "x^2+9y^2=81"),
    (r"x^2+(y+4)^2=4^2", "x^2+(y+4)^2=16"),
    ("Center $=(20,10)$", "(20,10)"),
    (r"\left(x,y\right)=\left(270^\circ ,5\right)", "(270°, 5)"),
    (r"y=\sin x=\left(90^\circ ,5\right)", "(90, 5)"),
    (r"$(x, y)=\left(315^{\circ}, 1\right)$", "(315, 1)"),
    ("slope =-4", "m = -4"),
    (r"$y \leq 5$", "y ≤ 5"),
    (r"$y<2 x+6$", "2x+6 > y"),
    (r"$[-5,-3) \cup(-3,5]$", "[-5,-3)∪(-3,5]"),
    (r"=\frac{7}{4}", "1.75"),
    (r"$=(4,0)$", "(4,0)"),
    (r"{8}{5} \pi", r"\frac{8\pi}{5}"),
    (r"3 \cos (2 \pi x+4 \pi)-6", r"3\cos(2\pi x+4\pi)-6"),
    (r"\[g(x)=(x + 4)^2 - 5\].", "x^2+8x+11"),
    ("f(x)=-(x+1)^2+2", "-x^2-2x+1"),
    ("f(x)=|x-3|", "|x-3|"),
    ("Bugs Bunny", "bugs bunny"),
    ("-4.9\n-4.9", "-4.9, -4.9"),
    ("142.0", "142"),
    ("0.0", "0"),
    ("[0, 2, 0, 2]", "[0,2,0,2]"),
]


@pytest.mark.parametrize(("gold", "answer"), CREDITED)
def test_the_plain_value_of_a_decorated_gold_is_credited(gold: str, answer: str) -> None:
    assert grade(f"<answer>{answer}</answer>", gold).correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"Circumference $=50.27 \mathrm{~cm}$", "50.3"),
        (r"Circumference $=50.27 \mathrm{~cm}$", "50.27 m"),
        (r"Area $=9 \pi \mathrm{cm}^{2}$", r"9\pi \text{ cm}"),
        (r"Area $=9 \pi \mathrm{cm}^{2}$", r"\text{Perimeter} = 9\pi"),
        (r"diameter $=10 \mathrm{~m}$", "r = 10"),
        ("$r=5$", "d=5"),
        (r"S 23.5 ^\circ W", "S 23.5° E"),
        ("y=-2 x+5", "y=2x+5"),
        (r"$y \leq 5$", "y<5"),
        ("1:2", "0.5"),
        ("142.0", "14.2"),
        (r"$13 \%$", "13.5%"),
    ],
)
def test_what_a_gold_carries_still_counts(gold: str, answer: str) -> None:
    assert not grade(f"<answer>{answer}</answer>", gold).correct


def test_a_blank_gold_credits_nothing() -> None:
    for answer in ("5", "", "$$", "A"):
        assert not grade(f"<answer>{answer}</answer>", " ", choices=["1", "2"]).correct
