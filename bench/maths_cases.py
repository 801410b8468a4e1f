"""Answers that tests and the bench judge: honest ones written otherwise, exploits, what hangs a symbolic library."""

from __future__ import annotations


def pairs(text: str) -> list[tuple[str, ...]]:
    return [tuple(side.strip() for side in line.split("|||")) for line in text.strip().splitlines()]


# gold ||| answers of the right value that restate their question: only `worked=False` takes them
UNEVALUATED = pairs(r"""
42 ||| 6\cdot 7
3 ||| 1 + 2
1024 ||| 2^{10}
1024 ||| 2^10
2 ||| \sqrt{4}
""")

# gold ||| answers, each written otherwise
RIGHT = pairs(r"""
\frac{1}{2} ||| \dfrac12
\frac{1}{2} ||| 0.5
\frac{1}{2} ||| \tfrac{1}{2}
\frac{1}{2} ||| \frac 1 2
3\sqrt{13} ||| \sqrt{117}
3\sqrt{13} ||| 3*sqrt(13)
\frac{3\sqrt{3}}{4} ||| \frac{3}{4}\sqrt{3}
\frac{\sqrt{3}}{3} ||| \frac{1}{\sqrt{3}}
11\sqrt2 ||| 11 \sqrt{2}
p - q ||| -q+p
6 - 5i ||| -5\mathrm{i} + 6
\left( 3, \frac{\pi}{2} \right) ||| (3, \pi/2)
1,-2 ||| -2, 1
1,-2 ||| -2 \text{ and } 1
1,-2 ||| x=1, x=-2
1,-2 ||| x = 1 \text{ or } x = -2
1,-2 ||| \{1,-2\}
3, 5, 7 ||| 3, 5, and 7
1 \pm \sqrt{19} ||| 1+\sqrt{19}, 1-\sqrt{19}
1 \pm \sqrt{19} ||| x = 1 \pm \sqrt{19}
\{1\pm\sqrt{5},-2\} ||| \{-2,1+\sqrt5,1-\sqrt5\}
52_8 ||| 52_{8}
52_8 ||| 52_{\text{eight}}
(3,4] ||| x \in (3,4]
(3,4] ||| 3 < x \le 4
(3,4] ||| 4 \ge x > 3
(2,\infty) ||| x > 2
(2,\infty) ||| (2, +\infty)
(-\infty, 2) \cup (3, \infty) ||| (3,\infty)\cup(-\infty,2)
(-\infty, 2) \cup (3, \infty) ||| x < 2 \text{ or } x > 3
x \in [-2,7] ||| -2 \leq x \leq 7
x \in [-2,7] ||| [-2, 7]
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} ||| \begin{pmatrix} -\frac{1}{3} \\ \frac23 \end{pmatrix}
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} ||| \begin{bmatrix}-1&0\\0&-1\end{bmatrix}
\text{Evelyn} ||| evelyn
\text{Evelyn} ||| \textbf{Evelyn}
\text{(C)} ||| C
\text{(C)} ||| \textbf{(C)}
C ||| \mathrm{(C)}
5x - 7y + 11z + 4 = 0 ||| -5x + 7y - 11z = 4
y = 2x + 3 ||| 2x+3
y = 2x + 3 ||| 2x - y + 3 = 0
2x+3 ||| y = 2x+3
x^3+3x-6 ||| P(x) = x^3 + 3x - 6
2k+2 ||| 2(k+1)
(x+1)^2 ||| x^2+2x+1
\frac{x+1}{x-1} ||| 1+\frac{2}{x-1}
\sin^2 x ||| 1-\cos^2 x
\cot x ||| 1/\tan x
\ln(x^2) ||| \ln(x \cdot x)
2\ln x ||| \ln(x^2)
\frac{270}7\text{ degrees} ||| \frac{270}{7}^\circ
\sin 30^\circ ||| \frac12
11,\! 111,\! 111,\! 100 ||| 11,111,111,100
10{,}000 ||| 10000
1\frac{4}{5} ||| \frac{9}{5}
137 \frac{1}{2} ||| 137.5
1.5 ||| 1 1/2
-2\frac12 ||| -2.5
18+2\pi ||| 2(\pi + 9)
42 ||| x = 42
42 ||| 42 \text{ square units}
42 ||| 42 apples
42 ||| 42\text{ cm}^2
42\text{ cm}^2 ||| 42 \text{ square centimeters}
5 \text{ inches} ||| 5 \text{ in}
5 ||| 5 m
42 ||| \$42.00
42 ||| \color{red}42
0.\overline{3} ||| \frac13
\frac{41}{333} ||| 0.\overline{123}
7.5\times 10^{-3} ||| 0.0075
\emptyset ||| \varnothing
\emptyset ||| \{\}
3:2 ||| 3 : 2
(-\infty,\infty) ||| \mathbb{R}
\log_2 8 ||| 3
\log_2 3 ||| \frac{\ln 3}{\ln 2}
\frac{1}{e} ||| e^{-1}
\sqrt[3]{2} ||| 2^{1/3}
\sqrt[3]{-8} ||| -2
\binom{10}{3} ||| 120
|x-1| ||| |1-x|
25\% ||| 0.25
25\% ||| 25
(1,2),(3,4) ||| (3,4),(1,2)
a=1,b=2 ||| b=2, a=1
x^2+y^2=25 ||| y^2+x^2-25=0
2x+3y<6 ||| -2x-3y>-6
n \equiv 3 \pmod 7 ||| n \equiv 3 \pmod{7}
\langle 1,2,3\rangle ||| \left\langle 1, 2, 3 \right\rangle
π ||| \pi
2√3 ||| \sqrt{12}
1, 2, \ldots, n ||| 1, 2, \ldots , n
\text{June 20} ||| June 20
\sin(x) ||| sin x
(1,2) ||| (x, y) = (1, 2)
(x,y)=(1,2) ||| (1,2)
\text{5 apples} ||| 5
""")

# gold ||| what a model might write in hope
EXPLOITS = pairs(r"""
42 ||| 4 2
42 ||| 42, 42
42 ||| 42 or 42
42 ||| \{42\}
42 ||| [42]
42 ||| (42, 43)
42 ||| 42 \pm 0
42 ||| 42 \text{ or } 43
42 ||| x = 42, y = 43
42 ||| 41 < x < 43
42 ||| x > 41
42 ||| x \ne 41
42 ||| x \in \{41,42\}
42 ||| \ldots 42
42 ||| 42?
42 ||| \approx 42
42 ||| x \approx 42
42 ||| \sim 42
42 ||| about 42
42 ||| 42 = 42
42 ||| x = y = 42
42 ||| 41+1=42
42 ||| 2x = 84
42 ||| x+y = 42
42 ||| \phantom{42}
42 ||| \cancel{41} 42
42 ||| 4\phantom{1}2
42 ||| \rlap{41}42
42 ||| 42_{10}
42 ||| 2A_{16}
42 ||| 101010_2
52_8 ||| 52
52_8 ||| 42
52_8 ||| 42_{10}
52_8 ||| 52_9
42 ||| 0x2A
42 ||| 142 \bmod 100
42 ||| \gcd(42,84)
42 ||| \max(41,42)
42 ||| \lim_{x \to 42} x
42 ||| \sum_{k=42}^{42} k
42 ||| 42!
42 ||| 42!!
42 ||| 42 % 7
42 ||| 42\%\%
42 ||| 42\text{ or maybe }41
42 ||| 42\text{ million}
42 ||| 42\text{ is wrong}
42 ||| \text{not } 42
42 ||| --42
42 ||| ４２
42 ||| ٤٢
42 ||| 42.0000001
42 ||| 42 + 10^{-50}
42 ||| 42 + 10^{-100}\pi
42 ||| 42i
42 ||| 42x
42 ||| 42 ; 43
42 ||| 42 & 43
42 ||| 42 \\ 43
42 ||| \begin{pmatrix}42\end{pmatrix}
42 ||| \begin{cases}42\\43\end{cases}
42 ||| the answer
42 ||| all real numbers
42 ||| 42 \lor 43
42 ||| \{42\} \cup \{43\}
42 ||| 42:43
42 ||| \mathbb{R}
42 ||| __import__('os').getpid()
42 ||| {42}{43}
42 ||| 42\,43
-42 ||| \pm 42
-42 ||| |{-42}|
B ||| A, B
B ||| A \text{ or } B
B ||| AB
B ||| \text{(A)(B)(C)(D)}
B ||| b
B ||| \text{not B}
\text{Tuesday} ||| \text{Tuesday or Thursday}
\text{Tuesday} ||| \text{not Tuesday}
\text{stop} ||| pots
\text{stop} ||| \text{p} \text{o} \text{t} \text{s}
\text{no} ||| \text{on}
\text{yes} ||| \text{yes and no}
(1,2) ||| [1,2]
(1,2) ||| \{1,2\}
(1,2) ||| 1,2
(1,2) ||| (1,2]
(1,2) ||| (2,1)
(1,2) ||| (1,2,2)
(1,2) ||| \langle 1,2\rangle
(1,2) ||| (1,2),(1,3)
(1,2) ||| (1,2) \cup (3,4)
\{1,2\} ||| \{1,2,3\}
\{1,2\} ||| \{1,1\}
\{1,2\} ||| (1,2)
\{1,2\} ||| \{1,2,2\}
1,2 ||| 1,2,3
1,2 ||| (1,2)
1 \pm \sqrt{19} ||| 1+\sqrt{19}
\begin{pmatrix}1\\2\end{pmatrix} ||| \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} ||| (1,2)
\begin{pmatrix}1&2\\3&4\end{pmatrix} ||| \begin{vmatrix}1&2\\3&4\end{vmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ||| \begin{pmatrix}1&3\\2&4\end{pmatrix}
x+1 ||| y+1
x^2 ||| x^{2.0001}
\sqrt{x^2} ||| x
|x| ||| x
y=2x+3 ||| x=2y+3
y=2x+3 ||| y=2x+3=5
y=2x+3 ||| y \ge 2x+3
y=2x+3 ||| 0=0
y=2x+3 ||| y=y
x=5 ||| 2x=10
x=5 ||| y=5
x=5 ||| x=5,6
x=5 ||| x=x
3x-1y+13=0 ||| 3x+4y+14=0
\frac{1}{2004!} ||| \frac{1}{2006!}
\frac{1}{2^{99}} ||| \frac{1}{2^{98}}
10^{-30} ||| 2\cdot 10^{-30}
0 ||| 10^{-300}\pi
e^{\pi\sqrt{163}} ||| 262537412640768744
\pi ||| 3.141592653589793238462643
\infty ||| -\infty
\infty ||| 10^{100}
\frac{1}{3} ||| 0.3333333333333333333333333333
(3,4] ||| 3 < x < 4
x>2 ||| x<2
x>2 ||| y>2
x>2 ||| 2
x \in [-2,7] ||| x \in (-2,7)
5\text{ cm} ||| 5\text{ km}
5\text{ cm} ||| 5\text{ cm}^2
25\% ||| 0.0025
a=1,b=2 ||| a=2,b=1
a=1,b=2 ||| 1,2
3:2 ||| 2:3
\emptyset ||| \{0\}
\emptyset ||| 0
1+2i ||| 1-2i
\text{even} ||| \text{even or odd}
\text{June 20} ||| 20 June
\text{June 20} ||| 20
June 20 ||| uJne 20
AB ||| BA
1 ||| x/x
1 ||| \sin^2 x + \cos^2 x
42 ||| 42 + x - x
(1,2) ||| (y,x) = (2,1)
(x,y)=(1,2) ||| (y,x)=(1,2)
\text{Room 12} ||| 12 \text{ moor}
n \equiv 3 \pmod 7 ||| n \equiv 3 \pmod 8
2x+3y<6 ||| 2x+3y>6
""")


# Completions that must not count for the gold 42.
TEXT_FORMS = r"""
\boxed{42} or 41
\boxed{42}, 41
\boxed{42} 41
\boxed{42}+1
\boxed{42}/2
\boxed{42}^2
\boxed{42}\times 10^3
\boxed{42} million
\boxed{42}? I am not sure.
\boxed{42}. Wait, that is wrong. It is 41.
\boxed{42}. Actually, it is 41.
\boxed{42} The answer is 41.
\boxed{42}, but it might be 41
\boxed{42}. Alternatively, 41.
\boxed{42}. Another possible answer is 41.
\boxed{42}. No, 41.
\boxed{42}, just a guess
The answer is 41. \boxed{42}
The answer is not \boxed{42}
It isn't \boxed{42}.
41 or \boxed{42}
I don't think the answer is \boxed{42}
\boxed{42
\boxed{42}\boxed{42}
\boxed{\boxed{42}}
\boxed{42} and \boxed{41}
\boxed{42} and 41
\boxed{42} = 41
\boxed{42} <answer>41</answer>
<answer>42</answer><answer>42</answer>
<answer>so \boxed{42}</answer>
<answer>42
Answer: 42 or 41
Answer: 41\nAnswer: 42
<think>\boxed{42}</think>
<think>\boxed{42}
<think>a</think>b</think>\boxed{42}
\fbox{42}
\boxed{}42
\boxed{$42$ or $41$}
\boxed{42\n41}
\boxed{42 % \n 41}
\boxed{41}<!-- \boxed{42} -->
\boxed{41 \iffalse 42 \fi}
The problem says 42.
42
""".strip().splitlines()


# What hangs, aborts or bloats a symbolic library. Nothing here may take long or be accepted.
HOSTILE = [
    "10^{10^{10}}", "9^{9^{9^{9}}}", "((9^9)^9)^{9^9}", "100000000!", "3000!", "((10!)!)!",
    r"\binom{10^9}{5\cdot 10^8}", "1e999999999", "(1+x)^{10000}-1", "(x+y+z)^{200}", r"\sin(10^{300})",
    r"\sin(10^{10^6})", r"\tan(2^{2^{20}})",
    r"e^{e^{e^{e^{e}}}}", r"\ln(\ln(\ln(10^{10^5})))", "0.1^{10^9}", "2^{-10^{15}}", "(1+10^{-9})^{10^{12}}",
    r"\sqrt[1000]{2^{30000}}", r"\sqrt[999999]{3}", r"x^{x^{x^{x^{x}}}}", "1/(1-1)", "0^0", "0^{-1}", r"\ln 0",
    r"\int_0^1 e^{x^x \sin(x^{\cos x})} dx", r"7^{7^{7^{7}}} \mod 10", "x^{37}+x^{36}+3x+1=0",
    r"\prod_{k=1}^{10^9} k", r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}", r"\lim_{x\to 0} x^{x^x}",
    r"\det\begin{pmatrix}x&y\\z&w\end{pmatrix}", "5\x00", "５", "٥", "\u200b5\u200b", "5\ud800", "$" * 400, "{" * 200,
    "(" * 200 + "5" + ")" * 200, r"\sqrt{" * 60 + "2" + "}" * 60, r"\frac{1}{1+" * 40 + "1" + "}" * 40,
    "-" * 400 + "5", "1," * 240 + "1", "5" * 500, "." * 400, "1.1" * 160, "^" * 300, "!" * 300, "5" + "!" * 300,
    "x_" * 200, r"\text{" * 80, r"\pm" * 100, "a=" * 200, "<" * 300, r"\cup" * 100, "|" * 300, "5|" * 200,
    r"\left(" * 80, "__import__('os').system('true')", "(lambda: 5)()", "open('/etc/passwd').read()",
    r"\text{__import__('os')}", "5 if 1 else 6", "x for x in range(9)",
    r"\begin{pmatrix}" + "1&" * 200 + r"\end{pmatrix}",
    r"\{" + ",".join(rf"\sqrt{{{n}}}" for n in range(45)) + r"\}", "1e" + "9" * 300, "0." + "0" * 400 + "1",
    r"\overline{5}" * 40, r"\\" * 200, "%" * 300, "&" * 300, "5" + r"\!" * 200 + "5", "~" * 300,
]  # fmt: skip
