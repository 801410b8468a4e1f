"""Languages: their scripts, and their commonest words of two letters or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCRIPTS: Mapping[str, str] = {  # as ranges of a character class
    "latin": "A-Za-zªºÀ-ÖØ-öø-ɏḀ-ỿ", "greek": "Ͱ-Ͽἀ-῿", "cyrillic": "Ѐ-ԯ", "armenian": "Ա-֏", "hebrew": "א-ת",
    "arabic": "ء-ۿݐ-ݿ", "devanagari": "ऀ-ॿ", "bengali": "ঀ-৿", "tamil": "஀-௿", "telugu": "ఀ-౿", "thai": "ก-๛",
    "georgian": "Ⴀ-ჿ", "kana": "ぁ-ヿｦ-ﾟ", "han": "㐀-鿿", "hangul": "ᄀ-ᇿ가-힯",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LanguageProfile:
    scripts: frozenset[str]
    common_words: frozenset[str] = frozenset()


def _profile(scripts: str, common: str = "") -> LanguageProfile:
    return LanguageProfile(frozenset(scripts.split()), frozenset(common.split()))


LANGUAGES: Mapping[str, LanguageProfile] = {
    "en": _profile("latin", """
        the of and to in is that it for as with was on be are this by have we not from so which or
        then what if there let they you but he she his her how each an can will has do no at all my me our were when
        one than its also more only now since because must same men son die over under after first both out up per"""),
    "de": _profile("latin", """
        der die das und ist nicht ein eine zu den mit sich von auf für dem es auch wir ich sie als
        wie dass wird bei oder aus nach kann so haben sind noch nur wenn dann also einen einer an am im in hat war er
        was man um des zum zur über diese dieser mehr da hier sein"""),
    "fr": _profile("latin", """le la les de des et est un une que qui dans pour pas sur avec ce il elle nous vous on au
        du donc mais ou par plus sont cette être alors si ont se en aux ne même tout tous son sa ses je me fait comme
        deux chaque"""),
    "es": _profile("latin", """el la los las de que en un una es por con para no se del al lo como más pero su sus este
        esta entonces si son hay ya cuando porque muy está le me ha cada dos también tiene uno todo ser luego da"""),
    "it": _profile("latin", """il lo la gli le di che un una per con non si del della dei in sono come più ma anche
        questo questa quindi se al da nel ci ha hanno uno alla delle dal due ogni mi su ne poi"""),
    "pt": _profile("latin", """os as de que em um uma por com para não se do da dos das no na como mais mas seu sua
        ou este esta então são tem quando também ele ela ao cada dois isso me foi ser"""),
    "nl": _profile("latin", """
        de het een en van is dat in te niet op met voor zijn er aan ook als maar om dan we ze naar
        bij uit nog wordt dus of kan hebben deze door was hij heeft elk twee over zo want die"""),
    "pl": _profile("latin", """na że nie się do to jest jak po co za od ale czy przez są dla tak więc być ten ta
        może tylko daje ile który która on ona ma każdy dwa jego gdy oraz ze"""),
    "sv": _profile("latin", """och att det som en på är av för med den till inte om ett har de men så vi kan från eller
        när då ska också var han hon man jag sig nu två varje in alla"""),
    "tr": _profile("latin", """ve bir bu için ile de da ne olarak çok daha gibi olan ama var her ki kadar sonra değil mi
        şu ise eğer olduğu biz iki en ya hem"""),
    "id": _profile("latin", """dan yang di untuk dengan adalah dari ini itu tidak pada ke akan kita dalam juga atau jadi
        maka sebagai oleh karena ada bisa setiap dua lebih"""),
    "vi": _profile("latin", """và của là có không được cho một các với trong này đó để những người khi vì nên thì đã từ
        như ra số ta hai mỗi chúng hơn"""),
    "ru": _profile("cyrillic", """не на что по это как то из за от же для мы так но или если все его она он они
        бы есть при был тогда до чтобы который у нас каждый"""),
    "uk": _profile("cyrillic", """не по то на що до це як та за від для ми так але або якщо його вона він вони при був
        тоді також із щоб який кожен"""),
    "bg": _profile("cyrillic", """не на че по това като за от се да ние така но или ако са той тя те при беше
        тогава също до който всеки"""),
    "el": _profile("greek"), "hy": _profile("armenian"), "he": _profile("hebrew"), "ar": _profile("arabic"),
    "hi": _profile("devanagari"), "bn": _profile("bengali"), "ta": _profile("tamil"), "te": _profile("telugu"),
    "th": _profile("thai"), "ka": _profile("georgian"), "ko": _profile("hangul"), "zh": _profile("han"),
    "ja": _profile("kana han"),
}  # fmt: skip
