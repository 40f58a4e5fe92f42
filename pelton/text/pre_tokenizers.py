"""How each `tokenizer.ggml.pre` type cuts text into words before BPE merges; it knows no vocabulary.

A GGUF file does not carry the model's pre-tokenizer, only a name for it. The names are those that llama.cpp gives out
when it converts a model; the patterns are those of the `tokenizer.json` files that the names stand for, in the dialect
of Oniguruma (Ruby syntax), as far as csrc/text/pattern.h knows it. Patterns of one type apply one after the other:
each cuts the pieces that the one before left, and what it does not match stays a piece too.
"""

from __future__ import annotations

import msgspec

# Parts that most patterns are put together from. A part is an alternative, tried in the order of the pattern.
_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_SUFFIXES = f"(?i:{_SUFFIXES})"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_WORD_WITH_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PUNCTUATION_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINE_ENDS = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_UP_TO_3_DIGITS = r"\p{N}{1,3}"
_ONE_DIGIT = r"\p{N}"

# Words that start at a change of case: "camelCase" is two. Marks and caseless letters belong to either side.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_UPPER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

_GPT2 = rf"{_SUFFIXES}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = "|".join((_ANY_CASE_SUFFIXES, _WORD, _UP_TO_3_DIGITS, _PUNCTUATION, _LINE_ENDS, _SPACES))
_QWEN2 = "|".join((_ANY_CASE_SUFFIXES, _WORD, _ONE_DIGIT, _PUNCTUATION, _LINE_ENDS, _SPACES))
_TEKKEN = "|".join((_CASED_WORD, _UPPER_WORD, _ONE_DIGIT, _PUNCTUATION_OR_SLASH, _LINE_ENDS, _SPACES))
_O200K_WORDS = f"{_CASED_WORD}{_ANY_CASE_SUFFIXES}?|{_UPPER_WORD}{_ANY_CASE_SUFFIXES}?"
_GPT4O = "|".join((_O200K_WORDS, _UP_TO_3_DIGITS, _PUNCTUATION_OR_SLASH, _LINE_ENDS, _SPACES))

# Han as the model authors wrote it (4E00 to 9FA5), and kana.
_HAN = "\u4e00-\u9fa5"
_KANA = "\u3040-\u309f\u30a0-\u30ff"
_HAN_AND_KANA = f"[{_HAN}{_KANA}]+"

_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3_WORDS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = "|".join((_DEEPSEEK3_WORDS, r" ?[\p{P}\p{S}]+[\r\n]*", _LINE_ENDS, _SPACES))

# Groups of three counted from the right end of a number: 1234567 is 1, 234, 567.
_DIGITS_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_LINES = r"[^\n]+|\n+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# Letters with case, as DeepSeek LLM lists them (code points in hexadecimal; later additions to Unicode are not among
# them, so no property says the same).
_DEEPSEEK_CASED_LETTERS = """
41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5
3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15
1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3
1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139
213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787
a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2
118a0-118df 1e900-1e943
"""


def _character_class(ranges: str) -> str:
    return "[" + "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in ranges.split()) + "]"


_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_character_class(_DEEPSEEK_CASED_LETTERS)}+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    f"[{_HAN}\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_HAN}\u0800-\u4e00\uac00-\ud7ff]+", _ONE_DIGIT)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_HAN_AND_KANA}"
)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_JAIS2_SPACES = "|".join(
    [*(rf"\s{{{run}}}(?!\S)" for run in (512, 256, 128, 64, 32, 16, 8, 4)), r"\s{1,2}(?!\S)", r"\s"]
)
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI_UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{_NOT_HAN}]"
_KIMI_LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{_NOT_HAN}]"
_KIMI_WORDS = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{body}{_ANY_CASE_SUFFIXES}?"
    for body in (f"{_KIMI_UPPER}*{_KIMI_LOWER}+", f"{_KIMI_UPPER}+{_KIMI_LOWER}*")
)
_EXAONE_WORDS = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    _ONE_DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)


class PreTokenizer(msgspec.Struct, frozen=True):
    """One way of cutting text into words.

    patterns:       applied in order (see the module).
    byte_level:     words become GPT-2's byte characters; False: words stay text, unknown characters become `<0xNN>`.
    escape_spaces:  spaces become U+2581 before the cut.
    drop_unmatched: what no pattern matches is left out (whitespace of the `whitespace` type), not kept as a piece.
    ignore_merges:  a word that is a token as a whole is not taken apart.
    add_bos:        whether a sequence starts with BOS when the file does not say.
    """

    patterns: tuple[str, ...]
    byte_level: bool = True
    escape_spaces: bool = False
    drop_unmatched: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_RULES: dict[PreTokenizer, str] = {
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): "default",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert mpt olmo jais trillion granite-docling exaone4"
    ),
    PreTokenizer((_ONE_DIGIT, _GPT2)): "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA3,), ignore_merges=True): "glm4 glm5",
    PreTokenizer((_QWEN2,)): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    PreTokenizer(
        (
            "|".join(
                (
                    _ANY_CASE_SUFFIXES,
                    _WORD_WITH_MARKS,
                    _ONE_DIGIT,
                    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                    _LINE_ENDS,
                    _SPACES,
                )
            ),
        )
    ): "qwen35",
    PreTokenizer(_DEEPSEEK_LLM): "deepseek-llm",
    PreTokenizer(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizer((_UP_TO_3_DIGITS, _HAN_AND_KANA, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    PreTokenizer(
        (
            _UP_TO_3_DIGITS,
            _HAN_AND_KANA,
            "|".join((_DEEPSEEK3_WORDS, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES)),
            _ONE_DIGIT,
        )
    ): "spark2_5",
    PreTokenizer(
        (
            _YOUTU_SCRIPTS,
            "|".join((_O200K_WORDS, _ONE_DIGIT, _PUNCTUATION_OR_SLASH, _LINE_ENDS, _SPACES)),
        ),
        ignore_merges=True,
    ): "youtu",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((_BLOOM,)): "bloom poro-chat gpt3-finnish",
    PreTokenizer((_BLOOM, _ONE_DIGIT)): "viking",
    PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer(_CHAMELEON, add_bos=True): "chameleon",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    PreTokenizer((_GPT4O,), ignore_merges=True): "granite-embed-multi-97m",
    PreTokenizer((_DIGITS_FROM_THE_RIGHT, _GPT4O)): "tiny_aya cohere2moe",
    PreTokenizer(
        ("|".join((r"\p{Han}+", _KIMI_WORDS, _UP_TO_3_DIGITS, _PUNCTUATION, _LINE_ENDS, _SPACES)),)
    ): "kimi-k2",
    PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    PreTokenizer(
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,)
    ): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer(
        ("|".join((_ANY_CASE_SUFFIXES, _WORD, _ONE_DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _LINE_ENDS, _SPACES)),)
    ): "seed-coder",
    PreTokenizer(("|".join((_WORD, _ONE_DIGIT, _PUNCTUATION, _LINE_ENDS, _SPACES)),)): "ufakzeka",
    PreTokenizer((_DIGITS_FROM_THE_RIGHT, _AFMOE_SCRIPTS, _DEEPSEEK3)): "afmoe",
    PreTokenizer((_LINES, _QWEN2)): "laguna",
    PreTokenizer(
        (
            "|".join(
                (_ANY_CASE_SUFFIXES, _EXAONE_WORDS, _ONE_DIGIT, r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]", _SPACES)
            ),
        )
    ): "exaone-moe",
    PreTokenizer(
        ("|".join((_ANY_CASE_SUFFIXES, _WORD, _UP_TO_3_DIGITS, _PUNCTUATION, _LINE_ENDS, _JAIS2_SPACES)),)
    ): "jais-2",
    PreTokenizer(
        (
            _UP_TO_3_DIGITS,
            "|".join((_ANY_CASE_SUFFIXES, _WORD, r"\p{N}+", _PUNCTUATION, _LINE_ENDS, _SPACES)),
        ),
        ignore_merges=True,
    ): "minicpm5",
    PreTokenizer((_LINES,), byte_level=False, escape_spaces=True, add_bos=True): "gemma4 granite-embed-multi-311m",
    PreTokenizer((_LINES,), byte_level=False, escape_spaces=True): "sarvam-moe",
    PreTokenizer((r"\S+",), byte_level=False, drop_unmatched=True): "whitespace",
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: rule for rule, names in _RULES.items() for name in names.split()}

# Names whose own vocabulary has been run against published token ids or against llama.cpp itself.
VERIFIED_NAMES = frozenset({
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma4", "gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35",
    "refact", "smollm", "starcoder",
})  # fmt: skip

DEFAULT_NAME = "default"


def verification(name: str) -> str:
    """Say how far the rule behind a pre type is checked: `verified`, `same rule as NAME` (verified), or `unverified`.

    Two types share a rule only if every field of it is equal, so that what is left to trust is the name alone.
    """
    if name in VERIFIED_NAMES:
        return "verified"
    rule = PRE_TOKENIZERS.get(name)
    for other in sorted(VERIFIED_NAMES):
        if PRE_TOKENIZERS[other] == rule:
            return f"same rule as `{other}`"
    return "unverified"


def pre_tokenizer_status() -> list[tuple[str, str]]:
    """Every known pre type with its `verification`, sorted by name."""
    return [(name, verification(name)) for name in sorted(PRE_TOKENIZERS)]
