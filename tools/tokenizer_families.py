"""The part of make_tokenizer_golden.py for families of today: Unigram models with character maps, Gemma, Phi, o200k,
cl100k, Cohere. Smaller than the others, because what all share is shown there."""
import base64
import io
import json
import random
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "", " ", "   ", "a", " a", "a ", "Hello, World! 123", "the  and   ing    er", "\n", "\n\n\n", "a\nb\r\nc\n\n\nd", "\t\ttabs\there   ", "mixed \n \n  lines \n",
    "1234567890", "a1b22c333d4444", "3.14159, ½ ² Ⅷ ٣٤٥ ⑦", "don't I'LL we've HE'D they'RE", "'s '\u017f", "!!!???...\n/", "HTMLParser fooBar ÀÉî ǅabc ʰa",
    "привет Мир", "你好，世界。", "한글 \u1112\u1161", "nai\u0308ve cafe\u0301", "e\u0301\u0323", "\u212b \ufb01 \uff21\uff11 \ufdfa", "नमस्ते", "👍🏽 👨\u200d👩\u200d👧 🇫🇷",
    "a\u0000b\u007f\u0085\u00a0", "\u180e \u200b\u2028\u3000x", "\u2581 \u2581\u2581x", "<0x41> \u0301", "<s>hello</s>", "a <s> b </s>c", "<unk>\u4e2d\u6587<unk>",
    "hello <|end|>  world", "x<|end|>\n<|end|> y", "a  <mask>  b", "a <tool> word, sword", "NORM a NORM", "<|end|>  \t\tword<mask>NORM", "if (x) {\n        return 1;\n}\n",
]

# Rules of a character map: one that begins like another, marks, a conjoining pair, what becomes nothing or much.
RULES = [("\t", " "), ("\n", " "), ("\r", " "), ("\u00a0", " "), ("\u3000", " "), ("\ufb01", "fi"), ("\u00bd", "1\u20442"), ("\u212b", "\u00c5"), ("e\u0301", "\u00e9"),
         ("\u0301", "'"), ("i\u0308", "\u00ef"), ("\u200b", ""), ("\u007f", ""), ("\uff21", "A"), ("\uff11", "1"), ("\u2026", "..."), ("\u1112\u1161", "\ud558"),
         ("\ufdfa", "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647")]

O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
# As its authors write it, with possessive quantifiers: here an interval with a plus is no such thing.
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"


def bytes_field(message, number):
    """The last value of a protocol buffer's field that holds bytes."""
    at, found = 0, None

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 2:
            size = varint()
            found = message[at:at + size] if tag >> 3 == number else found
            at += size
        elif tag & 7 == 0:
            varint()
        else:
            at += {5: 4, 1: 8}[tag & 7]
    return found


def charsmap(golden):
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("".join("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) + "\n" for rule in RULES))
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=golden.corpus(), model_writer=out, vocab_size=150, model_type="unigram", hard_vocab_limit=False,
                                                 character_coverage=0.98, normalization_rule_tsv=rules.name, minloglevel=2)
    return bytes_field(bytes_field(out.getvalue(), 3), 2)


def unigram(golden, num_pieces, normalizer, pre_tokenizer, decoder, byte_fallback):
    """Pieces that BPE learnt, with scores that fall by rank: the trainer of Unigram models need not give the same twice."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.train_from_iterator(golden.corpus(), trainers.BpeTrainer(vocab_size=num_pieces, initial_alphabet=["\u2581", *"abcdefghijklmnopqrstuvw.,'"], limit_alphabet=24,
                                                                  show_progress=False))
    learnt = base.get_vocab()
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    pieces += [[f"<0x{b:02X}>", 0.0] for b in range(256)] if byte_fallback else []
    pieces += [[t, round(-4 - 0.02 * n, 2)] for n, t in enumerate(sorted(learnt, key=learnt.get))]
    state = json.loads(Tokenizer(models.BPE()).to_str())
    state.update(model={"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": byte_fallback}, normalizer=normalizer,
                 pre_tokenizer=pre_tokenizer, decoder=json.loads(decoder.__getstate__()))
    tok = Tokenizer.from_str(json.dumps(state))
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return tok


def with_tokens(tok, tokens):
    """The same with these added tokens in place of those that the larger styles share."""
    state = json.loads(tok.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.add_tokens(tokens)
    return tok


def as_text_encoder(state):
    """What encodes markers as text. A Unigram model would find them among its pieces: here they get names that no text has."""
    special = {t["content"] for t in state["added_tokens"] if t["special"]}
    hidden = 0
    if state["model"]["type"] == "Unigram":
        for piece in state["model"]["vocab"]:
            if piece[0] in special:
                hidden += 1
                piece[0] = f"\U000f0000{hidden}"
    tok = Tokenizer.from_str(json.dumps(state))
    tok.encode_special_tokens = True
    num_pieces = len(state["model"]["vocab"])
    # Those that the model does not know any more have taken the first ids behind it.
    return lambda text: [i if i < num_pieces else i - hidden for i in tok.encode(text, add_special_tokens=False).ids]


def save(golden, name, tok, seed):
    folder = golden.OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    as_text = as_text_encoder(json.loads(tok.to_str()))
    rng = random.Random(seed)
    pool = [c for t in TEXTS for c in t] + ["<|end|>", "<mask>", "<s>", "NORM", "  ", "\t\t", "\u2581\u2581"] * 3
    encode = []
    for text in TEXTS + ["".join(rng.choices(pool, k=rng.randint(5, 30))) for _ in range(8)] + list(golden.corpus(seed, 2)):
        ids = tok.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        if as_text(text) != ids:
            case["ids_special_as_text"] = as_text(text)
        if golden.valid_byte_runs(tok, ids):
            case["decoded"] = tok.decode(ids, skip_special_tokens=False)
        encode.append(case)
    golden.write_cases(folder, encode, [])


def save_all(golden):
    """`golden` is the module make_tokenizer_golden."""
    mark = "\u2581"
    character_map = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(golden)).decode()}
    shorten = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": mark}
    strip = {"type": "Strip", "strip_left": True, "strip_right": False}
    metaspace = {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True}
    fallback = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    stripped = decoders.Sequence([*fallback, decoders.Strip(" ", 1, 0)])
    flags = [AddedToken("<|end|>", special=True, normalized=False, rstrip=True), AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=False),
             AddedToken("<tool>", special=False, normalized=False, rstrip=True), AddedToken("word", special=False, normalized=True, single_word=True),
             AddedToken("NORM", special=False, normalized=True, lstrip=True)]
    runs = [AddedToken(c * n, special=False, normalized=True) for c, n in [(" ", 8), (" ", 4), (" ", 3), (" ", 2), ("\t", 2)]]
    gemma = [AddedToken("<|end|>", special=True, normalized=False)]
    gemma += [AddedToken(c * n, special=False, normalized=False) for c, n in [("\n", 1), ("\n", 2), ("\n", 3), (mark, 2), (mark, 3), (mark, 4), ("\t", 2)]]
    split = lambda pattern, *how, **more: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), *how, **more),
                                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces, level = golden.sentencepiece_style, golden.byte_level
    llama = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    styles = {
        "unigram": (unigram(golden, 200, {"type": "Sequence", "normalizers": [character_map, shorten]}, metaspace, decoders.Metaspace(), False), flags),
        "unigram_bytes": (unigram(golden, 160, {"type": "Sequence", "normalizers": [strip, {"type": "NFKC"}]}, {**metaspace, "prepend_scheme": "first", "split": False},
                                  stripped, True), flags),
        "gemma": (pieces(420, normalizers.Replace(" ", mark), pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence(fallback)), gemma),
        "phi3": (pieces(420, llama, None, stripped), flags),
        "phi2": (level(340, gpt2), flags + runs),
        "o200k": (level(340, split(O200K, "removed", invert=True)), flags),
        "cl100k": (level(340, split(CL100K, "isolated")), flags),
        "cohere": (level(340, pre_tokenizers.Sequence([pre_tokenizers.Digits(True), gpt2]), normalizers.NFC()), flags),
    }
    for seed, (name, (tok, tokens)) in enumerate(styles.items(), 21):
        save(golden, name, with_tokens(tok, tokens), seed)
