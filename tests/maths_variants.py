r"""Answers written by somebody who has read the grader, and honest ones in varied notation. `gold ||| output`.

In an output that holds no \boxed and no other form all of it stands in a box.
"""

from __future__ import annotations


def cases(text: str) -> list[tuple[str, str]]:
    result = []
    for line in text.strip().splitlines():
        if "|||" in line:
            gold, output = (side.strip() for side in line.split("|||"))
            whole = any(mark in output for mark in (r"\boxed", "<answer>", "nswer", "####"))
            result.append((gold, output if whole else rf"\boxed{{{output}}}"))
    return result


EXPLOITS = cases(r"""
-- smaller than a tolerance
e^{-700} ||| e^{-701}
e^{-3000} ||| 3e^{-3000}
\pi\cdot 10^{-600} ||| 3\cdot 10^{-600}
\frac{e}{7^{900}} ||| \frac{e}{7^{899}}
\sqrt{5}\cdot 2^{-3000} ||| \sqrt{7}\cdot 2^{-3000}
\cos(10^{-300}) ||| 1
0 ||| \sin(10^{-700})
0 ||| 3^{-4000}
0 ||| \frac{1}{1000!}
0 ||| \sqrt{2}-1.4142135623730950488016887242096980785696718753769480731766797379907324784621
\ln 2 ||| \ln(2+10^{-500})
e ||| e+10^{-450}
e ||| (1+10^{-60})^{10^{60}}
\sqrt{3} ||| \sqrt{3}+e^{-1500}
\frac{\pi}{4} ||| \arctan(1-10^{-300})
\sqrt{2} ||| 1.41421356237309504880168872420969807856967187537694807317667973799073247846210703885038753432764157
\pi ||| \frac{355}{113}
\pi ||| \frac{103993}{33102}
\ln 3 ||| 1.09861228866810969139524523692
x ||| x+10^{-900}
2x+1 ||| 2x+1+e^{-4000}
\sin x ||| \sin x+10^{-350}
x^2 ||| x^2+\frac{1}{900!}
1+\sqrt{2} ||| 1+\sqrt{2}-\tanh(400)+1
-- wider than what is exact
6000! ||| 6000!+1
7000! ||| 7000!-1
12000! ||| 12000!\cdot(1+10^{-400})
2^{50000} ||| 2^{50000}-1
3^{60000} ||| 3^{60000}+2
2^{300000} ||| 2^{300000}+1
2^{74207281}-1 ||| 2^{74207281}+1
10^{100000} ||| 10^{100000}+1
\binom{30000}{15000} ||| \binom{30000}{15000}-1
\binom{25000}{100} ||| \binom{25000}{99}
\frac{1}{3^{50000}} ||| \frac{1}{3^{50000}+1}
\frac{1}{5000!} ||| \frac{1}{5000!+1}
7^{123456} ||| 7^{123456}-7
2^{40001} ||| 2^{40001}+2^{10}
-- functions are no factors
f(x+1) ||| f(x)+f(1)
f(2x) ||| 2f(x)
g(x+y) ||| g(x)+g(y)
g(3t) ||| 3g(t)
h(x+y) ||| h(x)+h(y)
F(a+b) ||| F(a)+F(b)
G(x-1) ||| Gx-G
P(x+2) ||| Px+2P
Q(n+1) ||| Q(n)+Q
P(x^2) ||| Px^2
f(x)f(y) ||| f(xy)
f(x)^2 ||| f(x^2)
u(a+b) ||| u(a)+u(b)
-- steps and bends between points
x ||| x+\lfloor\frac{x^2}{1000}\rfloor
x^2 ||| x^2+\lceil |x|/50\rceil-1
3x-2 ||| 3x-2+\lfloor \frac{|x|}{10^6}\rfloor
n+1 ||| n+\lceil \frac{n^2+1}{10^9(n^2+1)}\rceil
\lfloor x\rfloor ||| \lfloor x\rfloor+\lfloor \frac{x^2}{10^{9}}\rfloor
x ||| \frac{x+1000-|x-1000|}{2}
x+5 ||| 5+\frac{x+10^{6}-|x-10^{6}|}{2}
|x| ||| x
x ||| |x|
x ||| \sqrt{x^2}
x^3 ||| |x|^3
x^2+y^2=16 ||| (x^2+y^2-16)(2+\lfloor x^2/80\rfloor)=0
y=3x ||| (y-3x)(1+\lceil y^2/900\rceil)=0
-- units
5 \text{ km/h} ||| 5\text{ m/s}
60 \text{ mph} ||| 60\text{ km/h}
9 \text{ V} ||| 9\text{ mV}
3 \text{ kg} ||| 3\text{ g}
3 \text{ kg} ||| 3\text{ lb}
4 \text{ W} ||| 4\text{ kW}
4 \text{ kJ} ||| 4\text{ J}
20 \text{ MHz} ||| 20\text{ kHz}
2 \text{ hours} ||| 2\text{ minutes}
2 \text{ weeks} ||| 2\text{ days}
7 \text{ feet} ||| 7\text{ inches}
7 \text{ yards} ||| 7\text{ feet}
6 \text{ L} ||| 6\text{ mL}
6 \text{ gallons} ||| 6\text{ quarts}
8 \text{ m}^2 ||| 8\text{ cm}^2
8 \text{ m}^2 ||| 8\text{ m}
8 \text{ square feet} ||| 8\text{ cubic feet}
5 \text{ dimes} ||| 5\text{ quarters}
5 \text{ dollars} ||| 5\text{ euros}
\$3 ||| €3
\$3 ||| ¥3
\$3 ||| 3\text{ pounds}
£4 ||| \$4
4 \text{ euros} ||| 4\text{ yen}
3 \text{ cents} ||| \$3
7 \text{ boys} ||| 7\text{ girls}
7 \text{ cats} ||| 7\text{ dogs}
12 \text{ marbles} ||| 12\text{ boxes}
30^\circ ||| 30\text{ radians}
5 \text{ N} ||| 5\text{ MN}
90\% ||| 90\text{ cm}
-- words that change the figure
42 ||| 42\text{ halved}
42 ||| 42\text{ doubled}
42 ||| 42\text{ in hexadecimal}
42 ||| 42\text{ in binary}
42 ||| 42\text{ in base 8}
42 ||| 42 in octal
42 ||| 42\text{ upside down}
42 ||| 42\text{ backwards}
42 ||| 42\text{ thirds}
42 ||| 42\text{ dozens}
42 ||| 42\text{ scores}
42 ||| 42\text{ lacs}
42 ||| 42\text{ couples}
42 ||| 42\text{ hundredths}
42 ||| 42\text{ thousand}
42 ||| 42\text{ crore}
42 ||| 42k
42 ||| 42 M
42 ||| 42\text{ K}
42 ||| 42\text{ short}
42 ||| 42\text{ negated}
42 ||| 42\text{ to the fourth}
42 ||| 42\text{ under par}
42 ||| 42\text{ overdrawn}
42 ||| 42\text{ give or take}
42 ||| 42\text{ish}
42 ||| 42\text{ and then some}
42 ||| 42\text{ rounded down}
42 ||| 42\text{ truncated}
42 ||| 42\text{ tops}
42 ||| 42\text{ at best}
0.6 ||| 0.6\text{ recurring}
0.6 ||| 0.6\text{ periodic}
0.45 ||| 0.45\text{ repeating}
7 ||| 7\text{ inverse}
1 ||| 1\%
0.5 ||| 0.5\text{ percent}
-- named left sides
42 ||| \text{not the answer}=42
42 ||| \text{double the answer}=42
42 ||| \text{anything but}=42
42 ||| \text{Anything but }=42
42 ||| \text{answer plus one}=42
42 ||| \text{false}=42
42 ||| \text{twice}=42
42 ||| \text{negative of x}=42
42 ||| \text{upper bound}=42
42 ||| NOT=42
42 ||| \neg=42
42 ||| \sim=42
42 ||| \sqrt{x}=42
42 ||| -x=42
42 ||| 1/x=42
42 ||| 2x=42
42 ||| x+1=42
42 ||| x^2=42
42 ||| x!=42
42 ||| 41=42
42 ||| \text{Area minus }1=42
42 ||| \text{wrong answer}=42
-- words around the box
42 ||| The negative of \boxed{42}
42 ||| The reciprocal of \boxed{42}
42 ||| The square of \boxed{42}
42 ||| The square root of \boxed{42}
42 ||| Twice \boxed{42}
42 ||| Half of \boxed{42}
42 ||| More than \boxed{42}
42 ||| Greater than $\boxed{42}$
42 ||| One less than \boxed{42}
42 ||| Anything but \boxed{42}
42 ||| Everything except \boxed{42}
42 ||| At most \boxed{42}
42 ||| minus \boxed{42}
42 ||| $\sqrt[4]{\boxed{42}}$
42 ||| $\hat{\boxed{42}}$
42 ||| $\lfloor\frac{\boxed{42}}{5}\rfloor$
42 ||| $\boxed{42}^3$
42 ||| $\boxed{42}_8$
42 ||| $\boxed{42}_{\text{eight}}$
42 ||| \boxed{42} cubed
42 ||| \boxed{42} factorial
42 ||| \boxed{42} in binary
42 ||| \boxed{42} doubled
42 ||| \boxed{42}, halved.
42 ||| \boxed{42} repeating
42 ||| \boxed{42}\%
42 ||| \framebox{41} \boxed{42}
42 ||| \fbox{7} or so; \boxed{42}
42 ||| \boxed{42}. That is untrue.
42 ||| \boxed{42}. I was lying.
42 ||| \boxed{42}. Just kidding.
42 ||| \boxed{42}. I take that back.
42 ||| \boxed{42}. The real answer is 41.
42 ||| \boxed{42}. The answer is forty-one.
42 ||| \boxed{42}. 40 is the correct answer.
42 ||| \boxed{42}. Seven is the right value.
42 ||| \boxed{42}. The true value is 43.
42 ||| \boxed{42}. But 43 is just as possible.
42 ||| \boxed{42}. Then again, I changed my mind.
-- not worked out
85 ||| 90-5
85 ||| 17\cdot 5
85 ||| 17 \times 5
85 ||| \frac{170}{2}
24 ||| 4!
8 ||| 2^3
6 ||| \sqrt{36}
6 ||| 3+3
1 ||| \cos 0
0 ||| \sin \pi
0 ||| 5-5
10 ||| \binom{5}{2}
7 ||| \lceil 6.2\rceil
5 ||| |{-5}|
1 ||| \log_7 7
0.5 ||| 1-0.5
\frac{3}{4} ||| \frac{1}{2}+\frac{1}{4}
\frac{3}{4} ||| 1-\frac{1}{4}
12 ||| 144^{1/2}
100 ||| 64+36
(3,4) ||| (1+2,2^2)
5 ||| 5^{1}
5 ||| 5+0
5 ||| 5\cdot 1
-- others
(1,2)\cup(5,6) ||| (1,2),(5,6)
x>3 ||| x\ge 3
\{1,2,3\} ||| \{1,2,3,4\}
\{1,2\} ||| \{1,2,2\}
(1,2) ||| [1,2]
(1,2) ||| (2,1)
3:4 ||| 4:3
3:4 ||| 3\text{ to }5
5_8 ||| 5_9
x \equiv 2 \pmod 5 ||| x \equiv 2 \pmod 7
x \equiv 2 \pmod 5 ||| 2 \bmod 7
B ||| (A) or (B)
B ||| \textbf{(C)} 42
B ||| (A)(B)
(1,2) ||| x=2, y=1
2x+C ||| 3x+c
3+4i ||| 4+3j
\frac{\pi}{3} ||| 30^\circ
60^\circ ||| \frac{\pi}{6}
|x|>2 ||| |x|<2
(-\infty,-2)\cup(2,\infty) ||| |x|\ge 2
(0,3) ||| \{x\mid 0\le x<3\}
1000000 ||| 1\text{ billion}
0.\overline{6} ||| 0.\dot{5}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ||| \begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{pmatrix}3\\4\end{pmatrix} ||| \begin{array}{r|r}3\\4\end{array}
-- found by a second reading
42 ||| \boxed{42\text{ over 2}}
42 ||| \boxed{42\text{ divided by two}}
42 ||| \boxed{42\text{ or less}}
42 ||| \boxed{42\text{ squared}}
42 ||| \boxed{42\text{ mirrored}}
42 ||| \boxed{42\text{ mod 5}}
42 ||| \boxed{42\text{ (mod 5)}}
42 ||| \boxed{42‰}
42 ||| \boxed{42\text{ mn}}
42 ||| \boxed{42 G}
42 ||| \boxed{42\text{ gross}}
42 ||| \boxed{42\text{ sevenths}}
42 ||| \boxed{42\text{ tens}}
42 ||| \boxed{42\text{ threes}}
42 ||| $0.\boxed{42}$
42 ||| \boxed{42}00
42 ||| \boxed{42},000
42 ||| 1\boxed{42}
-42 ||| $|\boxed{-42}|$
42 ||| $\boxed{42}'$
42 ||| $\boxed{42}\pmod 5$
42 ||| ${\boxed{42}\over 2}$
42 ||| Wrong: \boxed{42}
42 ||| \boxed{42} is not it.
42 ||| \boxed{42}: false.
42 ||| It can't be \boxed{42}
42 ||| The wrong answer is \boxed{42}
42 ||| This rules out \boxed{42}
42 ||| \boxed{42} + x
5 \text{ MW} ||| \boxed{5\text{ mW}}
5 \text{ mm} ||| \boxed{5\text{ Mm}}
5 \text{ kB} ||| \boxed{5\text{ kb}}
x+5 ||| \boxed{5+\frac{x+10^{80}-|x-10^{80}|}{2}}
x+5 ||| \boxed{5+\frac{x+10^{300}-\sqrt{(x-10^{300})^2}}{2}}
\sin x ||| \boxed{\sin x+|x-10|-10+x}
\sin x ||| \boxed{\sin x+\sqrt{(x-10^4)^2}-10^4+x}
e^x ||| \boxed{e^x+|x-10^6|-10^6+x}
\sqrt{x} ||| \boxed{\sqrt{x}+|x-10^{80}|-10^{80}+x}
f^{-1}(x) ||| \boxed{\frac{x}{f}}
f_1(x+y) ||| \boxed{f_1(x)+f_1(y)}
\phi(x+y) ||| \boxed{\phi(x)+\phi(y)}
y-\pi x=0 ||| \boxed{(y-\pi x)(1+10^{-100}x)=0}
y=\sqrt{2}x ||| \boxed{y=\sqrt{2}x+10^{-200}}
x^2+y^2=7 ||| \boxed{(x^2+y^2-7)(x^2+1)=0}
e^{-1000} ||| \boxed{e^{-1000}(1+10^{-50})}
\sqrt{2} ||| \boxed{\frac{1.4142135623730950488+\frac{2}{1.4142135623730950488}}{2}}
2^{64} ||| \boxed{2^{64}+1}
10^{10^{10}} ||| \boxed{10^{10^{10}}+1}
2^{2^{100}} ||| \boxed{2^{2^{100}}+1}
(1+x)^{3} ||| \boxed{(1+x)^{10000}-1}
\frac{1}{x} ||| \boxed{\frac{1}{x}+10^{-80}}
42 ||| \boxed{42 \text{ but really } 41}
42 ||| \boxed{\text{about }42}
42 ||| \boxed{42\pm 0}
42 ||| \boxed{42.0000000000000000000001}
42 ||| \boxed{4\color{white}{1}2}
7 ||| \boxed{7\text{ dozen}}
\frac{1}{3} ||| \boxed{0.3333333333333333333333}
12 ||| \boxed{012_8}
(2,3) ||| \boxed{(2,3), (4,5)}
1,2 ||| \boxed{1,2,1}
42 ||| The answer is 42 halved.
42 ||| Answer: 42 in base 7
42 ||| The answer is 42 dozen.
42 ||| #### 42 thousand
\sum_{k=1}^{n} k ||| \boxed{\frac{n(n+1)}{2}+1}
\sum_{k=1}^{n} k ||| \boxed{n}
\sum_{k=1}^{n} (2k-1) ||| \boxed{n^2+1}
\int_0^1 x dx ||| \boxed{\frac13}
\frac{n(n+1)}{2} ||| \boxed{\sum_{k=1}^{n} k}
""")

HONEST = cases(r"""
-- fractions and decimals
\frac{3}{5} ||| \dfrac35
\frac{3}{5} ||| \tfrac{3}{5}
\frac{3}{5} ||| {3 \over 5}
\frac{3}{5} ||| {3\over5}
\frac{3}{5} ||| {{3}\over{5}}
\frac{3}{5} ||| 3/5
\frac{3}{5} ||| 0.6
\frac{3}{5} ||| .6
\frac{3}{5} ||| 0.60
\frac{3}{5} ||| \frac{6}{10}
\frac{3}{5} ||| \left(\frac{3}{5}\right)
\frac{3}{5} ||| \frac{\,3\,}{\,5\,}
\frac{3}{5} ||| 60\%
-\frac{2}{7} ||| \frac{-2}{7}
-\frac{2}{7} ||| \frac{2}{-7}
-\frac{2}{7} ||| -2/7
-\frac{2}{7} ||| $-\boxed{\frac{2}{7}}$
9/4 ||| 2\frac{1}{4}
9/4 ||| 2\tfrac14
9/4 ||| 2 1/4
9/4 ||| 2.25
\frac{x+1}{2} ||| {x+1 \over 2}
\frac{2}{3} ||| 0.\overline{6}
\frac{2}{3} ||| 0.\dot{6}
\frac{1}{7} ||| 0.\dot{1}4285\dot{7}
0.\overline{27} ||| \frac{3}{11}
-- large and small numbers
2500000 ||| 2.5\text{ million}
2500000 ||| 2.5 million
3000 ||| 3\text{ thousand}
3000 ||| 3{,}000
3000 ||| 3\,000
3000 ||| 3,000
3000 ||| 3000.0
3000 ||| 3\times 10^3
3000 ||| 3 \cdot 10^{3}
1000000 ||| 10^6
4000000000 ||| 4\text{ billion}
24 ||| 2\text{ dozen}
0.00045 ||| 4.5\times 10^{-4}
1200000 ||| 1.2 \text{ million dollars}
-- units
15 \text{ cm} ||| 15
15 \text{ cm} ||| 15\text{ centimeters}
15 \text{ cm} ||| 15cm
15 \text{ cm} ||| 15\,\mathrm{cm}
15 \text{ cm} ||| 0.15\text{ m}
15 ||| 15\text{ cm}^2
15 ||| 15\,\mathrm{kg}
15 ||| 15\,\mathrm{m}\,\mathrm{s}^{-2}
15 ||| 15\text{ m/s}
15 ||| 15\text{ miles per hour}
15 ||| 15\text{ mph}
15 ||| 15\text{ square inches}
15 ||| 15\text{ cubic units}
15 ||| 15\text{ units}
15 ||| 15\text{ apples}
15 ||| 15\text{ different ways}
15 ||| 15\text{ students}
15 ||| 15\text{ people}
15 ||| 15\text{ years}
15 ||| 15 hours
15 ||| 15\text{ points}
15 ||| \$15
15 ||| 15\text{ dollars}
15 ||| 15^\circ
15 ||| 15^{\circ}
15 ||| 15°
36 \text{ km/h} ||| 10\text{ m/s}
36 \text{ km/h} ||| 36\text{ kilometers per hour}
36 \text{ km/h} ||| 36\ \mathrm{km}/\mathrm{h}
2 \text{ hours} ||| 120\text{ minutes}
3 \text{ apples} ||| 3
3 \text{ apples} ||| 3\text{ apples}
5 \text{ m}^2 ||| 5\text{ square meters}
5 \text{ m}^2 ||| 5\,\text{m}^2
\$12.50 ||| 12.50
\$12.50 ||| \$12.5
\$12.50 ||| 12.5\text{ dollars}
\$0.25 ||| 25\text{ cents}
6 \text{ pounds} ||| 6\text{ lbs}
20\% ||| 20
20\% ||| 0.2
20\% ||| \frac{1}{5}
20\% ||| 20\text{ percent}
20\% ||| $\boxed{20}\%$
20 ||| 20\%
-- angles
\frac{\pi}{6} ||| 30^\circ
\frac{\pi}{4} ||| 45^{\circ}
\frac{3\pi}{2} ||| 270^\circ
45^\circ ||| \frac{\pi}{4}
45^\circ ||| 45
45^\circ ||| 45\text{ degrees}
\frac{\pi}{6} ||| \frac{\pi}{6}\text{ radians}
\frac{\pi}{6} ||| \frac16\pi
-- intervals and sets
(2,5) ||| 2<x<5
(2,5) ||| x\in(2,5)
(2,5) ||| \{x \mid 2<x<5\}
(2,5) ||| \{x : 2 < x < 5\}
(2,5) ||| \{x\in\mathbb{R} : 2<x<5\}
[2,5) ||| 2\le x<5
[2,\infty) ||| x\geq 2
[2,\infty) ||| \{x \mid x\ge 2\}
(-\infty,2] ||| x \leqslant 2
(-\infty,-3)\cup(3,\infty) ||| |x|>3
(-\infty,-3]\cup[3,\infty) ||| |x|\ge 3
(-4,4) ||| |x|<4
[-4,4] ||| |x| \le 4
(-\infty,\infty) ||| \mathbb{R}
\emptyset ||| \varnothing
\{2,5\} ||| \{5,2\}
2,5 ||| x=2 \text{ or } x=5
2,5 ||| x_1=2, x_2=5
2,5 ||| x_1 = 5, x_2 = 2
2,5 ||| 5 \text{ and } 2
(2,5) ||| x=2, y=5
(2,5,7) ||| x=2, y=5, z=7
(a,b)=(2,5) ||| (2,5)
\langle 3,4\rangle ||| (3,4)
\pm 5 ||| 5, -5
\pm 5 ||| x = \pm 5
2\pm\sqrt3 ||| 2-\sqrt3, 2+\sqrt3
-- choices, bases, ratios, residues, times
C ||| \textbf{(C)}\ 17
C ||| \text{(C) } 17
C ||| (C)
C ||| \text{C}
C ||| (C) 3.5
1101_2 ||| (1101)_2
1101_2 ||| 1101_{2}
1101_2 ||| 1101_{\text{two}}
2:5 ||| 2\text{ to }5
2:5 ||| 2 : 5
x\equiv 4\pmod 9 ||| 4 \bmod 9
x\equiv 4\pmod 9 ||| 4 \pmod{9}
4 \pmod 9 ||| 4\pmod{9}
7:15 ||| 7\!:\!15
\text{Friday} ||| Friday
\text{Friday} ||| \textbf{Friday}
-- numbers that are no fractions
2-3i ||| 2-3j
2-3i ||| -3i+2
2-3i ||| 2 - 3\mathrm{i}
\sqrt{6} ||| 6^{1/2}
\sqrt{6} ||| \sqrt 6
\sqrt{6} ||| \sqrt{2}\sqrt{3}
2\sqrt{3} ||| \sqrt{12}
\frac{\sqrt{2}}{2} ||| \frac{1}{\sqrt{2}}
\frac{\sqrt{5}}{5} ||| \sqrt{\frac15}
\sqrt[3]{4} ||| 4^{\frac13}
3\ln 2 ||| \ln 8
\log_3 5 ||| \frac{\log 5}{\log 3}
e^{2} ||| \exp(2)
\frac{\pi}{2} ||| 0.5\pi
2^{100} ||| 4^{50}
2^{10} ||| 1024
20! ||| 2432902008176640000
-- expressions
x^2-4 ||| (x-2)(x+2)
x^2-4 ||| -4+x^2
n(n-1)/2 ||| \binom{n}{2}
\frac{n(n+1)}{2} ||| \frac{n^2+n}{2}
a(b+c) ||| ab+ac
\frac{h(a+b)}{2} ||| \frac{(a+b)h}{2}
P(1+r)^n ||| P(r+1)^n
f(x+1) ||| f(1+x)
x^2+C ||| x^2 + c
\frac{1}{x} ||| x^{-1}
\cos^2 x ||| 1-\sin^2 x
\sin 2x ||| 2\sin x\cos x
\lfloor x \rfloor+1 ||| 1+\lfloor x \rfloor
y=3x-2 ||| 3x-y-2=0
y=3x-2 ||| y+2=3x
x=7 ||| 7
\frac{x^2}{4}+y^2=1 ||| x^2+4y^2=4
\begin{pmatrix}1&2\\3&4\end{pmatrix} ||| \begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}
\begin{pmatrix}1\\1/2\end{pmatrix} ||| \begin{pmatrix}1\\0.5\end{pmatrix}
-- around
42 ||| The sum of the digits is \boxed{42}.
42 ||| She has \boxed{42} apples.
42 ||| $\boxed{42}$ marbles are left.
42 ||| $x=\boxed{42}$
42 ||| The area is \boxed{42} square units.
42 ||| \boxed{42}, since 6 times 7 is 42.
42 ||| Half of 84 is \boxed{42}.
42 ||| We need at least \boxed{42} of them.
42 ||| 42 is the answer, so \boxed{42}
42 ||| **Final Answer**: $\boxed{42}$
42 ||| #### 42
42 ||| Hence the answer is **42**.
42 ||| <answer>$42$</answer>
42 ||| \boxed{42}. So 42 is the correct answer.
42 ||| Thus \(\boxed{x = 42}\).
42 ||| \boxed{\text{Area} = 42}
42 ||| \boxed{\text{Total cost} = 42}
42 ||| \boxed{\text{The answer is } 42}
42 ||| \boxed{\angle ABC = 42}
-42 ||| $x = -\boxed{42}$
-42 ||| The answer is $-\boxed{42}$.
-- found by a second reading
42 ||| So the answer is \boxed{42}. No further steps are needed.
42 ||| The final value of x is $\boxed{42}$.
5 ||| The number of real roots is \boxed{5}.
5 ||| \boxed{5 \text{ real roots}}
12 ||| \boxed{12 \text{ ordered pairs}}
12 ||| There are \boxed{12} pairs.
12 ||| There are $\boxed{12}$ ordered pairs in total.
6 ||| \boxed{6\text{ squares}}
100 ||| \boxed{100\text{ digits}}
24 ||| \boxed{24\text{ zeros}}
30 ||| \boxed{30\text{ sq cm}}
30 ||| \boxed{30\;\text{cm}^2}
30 ||| \boxed{30\ \text{m}^3}
30 ||| \boxed{30 \text{ mi/h}}
30 ||| \boxed{30 \text{ dollars per hour}}
30 ||| \boxed{30 \text{ inches}}
30 ||| \boxed{30\text{ mL}}
8 ||| \boxed{8\text{ months}}
9:30 ||| \boxed{9:30 \text{ a.m.}}
\frac{1}{e} ||| \boxed{e^{-1}}
\sqrt{e^x} ||| \boxed{e^{x/2}}
e^{x/2} ||| \boxed{\sqrt{e^x}}
\frac{1-x^{n+1}}{1-x} ||| \boxed{\frac{x^{n+1}-1}{x-1}}
2^n ||| \boxed{2\cdot 2^{n-1}}
\frac{1}{2}\ln 3 ||| \boxed{\ln\sqrt{3}}
x e^x - e^x + C ||| \boxed{e^x(x-1)+C}
\arctan x ||| \boxed{\tan^{-1} x}
\frac{n!}{(n-2)!} ||| \boxed{n(n-1)}
a^2+2ab+b^2 ||| \boxed{(a+b)^2}
\frac{-b+\sqrt{b^2-4ac}}{2a} ||| \boxed{\frac{\sqrt{b^2-4ac}-b}{2a}}
x=1,y=2 ||| \boxed{(1,2)}
(1,2) ||| \boxed{(x,y)=(1,2)}
3\sqrt{2} ||| \boxed{\sqrt{18}}
1.5 ||| \boxed{\frac32}
1.5 ||| \boxed{1\frac12}
\frac{7}{3} ||| \boxed{2\frac{1}{3}}
-3 ||| \boxed{x=-3}
100 ||| \boxed{10^2}
0.25 ||| \boxed{25\%}
2\pi ||| \boxed{360^\circ}
\text{Yes} ||| \boxed{\text{yes}}
D ||| \boxed{\textbf{(D)}~\frac{1}{2}}
D ||| \boxed{\text{D}}
\{1,2,3\} ||| \boxed{\{3,2,1\}}
x \le -2 \text{ or } x \ge 2 ||| \boxed{|x|\ge 2}
(-\infty,0)\cup(0,\infty) ||| \boxed{x\ne 0}
7.5 \text{ hours} ||| \boxed{7\frac12 \text{ hours}}
1{,}234{,}567 ||| \boxed{1234567}
\frac{\sqrt{3}}{2} ||| \boxed{\sqrt{3}/2}
x^2 y ||| \boxed{yx^2}
42 ||| The answer is $\boxed{42}$, which is the sum of 40 and 2.
42 ||| \[ \boxed{42} \]
42 ||| Therefore $6 \times 7 = \boxed{42}$.
\sum_{k=1}^{n} k ||| \boxed{\frac{n(n+1)}{2}}
\sum_{k=1}^{n} k ||| \boxed{\sum_{k=0}^{n} k}
\sum_{k=1}^{n} (2k-1) ||| \boxed{n^2}
\int_0^1 x dx ||| \boxed{\frac12}
""")
