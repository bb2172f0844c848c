#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_styles/: small tokenizers in the styles of published models, and what the Hugging Face
`tokenizers` and `sentencepiece` packages make of difficult texts. Needs `pip install tokenizers sentencepiece`.

The tokenizers are trained on text that this script makes up, so the files are the project's own."""
import collections
import io
import json
import pathlib
import random
import sys

import sentencepiece
import tokenizer_families
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizer_styles"

SYLLABLES = "ka to mi ren sol ver dan qui lo pa the and ing er on at re st ed li ne wor ld hel fin da".split()
OTHERS = ["привет мир", "你好世界", "日本語の文", "naïve café déjà", "über straße", "αβγ δέλτα", "שלום", "नमस्ते", "😀👍🏽", "e\u0301a\u0308"]


def corpus(seed=7, lines=3000):
    rng = random.Random(seed)
    for _ in range(lines):
        words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(3, 12))]
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), str(rng.randrange(10 ** rng.randint(1, 6))))
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), rng.choice(OTHERS))
        if rng.random() < 0.3:
            words[0] = words[0].capitalize()
        yield rng.choice([" ", " ", " ", "  ", ", "]).join(words) + rng.choice([".", "!", "?", " (x) ", "'s", "\n", ""])


TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "hello world", "Hello, World! 123", "the  and   ing    er", "\n", "\n\n", "a\nb\r\nc\n\n\nd",
    "\t\ttabs\there", "trailing spaces   ", "   leading spaces", "mixed \n \n  lines \n", "1", "12", "123", "1234", "1234567890", "a1b22c333d4444",
    "3.14159, 1,000,000", "don't I'll we've he'd they're I'm it's DON'T I'LL", "'s 's'S", "\u2019s", "'\u017f", "(parens) [brackets] {braces}",
    "!!!???...", "a-b_c.d/e\\f", "$100 €50 £20", "x=y+z*2", "привет мир", "Привет, Мир!", "你好世界", "日本語の文、です。", "naïve café déjà vu",
    "nai\u0308ve cafe\u0301", "e\u0301\u0323 e\u0323\u0301", "\u1e9b\u0323", "\u212b \u2126 \ufb01", "שלום עולם", "नमस्ते दुनिया", "สวัสดี", "😀", "👍🏽",
    "👨\u200d👩\u200d👧", "a😀b 😀 c", "🇫🇷🇯🇵", "\u0000", "a\u0000b", "\u007f\u0080\u0085\u00a0\u00ad", "\u2028\u2029\u3000x", "\ufeffbom", "\ufffd", "\U0010ffff\ue000",
    "\u2581", "a\u2581b", "\u2581\u2581 x", "Ġ", "ĊĠ", "½ ² Ⅷ ٣٤٥ ⑦", "a\u0301\u0302\u0303\u0304b", "\u0301start", "İstanbul ıI", "ＡＢＣ１２３",
    "<s>", "</s>", "<unk>", "<s>hello</s>", "a <s> b </s> c", "<s> <s>  </s>", "hello<|end|>world", "hello <|end|> world", "x<|end|><|end|>y",
    "<|end", "|end|>", "<tool>call</tool>", "a <tool> b", "a<mask>b", "a   <mask>   b", "<mask>\n<mask>", " <mask>", "word", "a word b", "swordfish", "word,word",
    "xNORMx", "a NORM b", "NORM", "NORM NORM", "<0x0A>", "<0x41>", "<|end|>word<mask> <s>", "kator mirensol verdanqui", "thethethetheand" * 3,
    "a" * 40, " " * 33 + "x", "=" * 20, "ab" * 30, "\r\r\n \r", "if (x) {\n    return 1;\n}\n", "http://example.com/a?b=c&d=e#f",
]


def added(special=()):
    return [AddedToken("<|end|>", special=True, normalized=False), AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=False),
            AddedToken("<tool>", special=False, normalized=False), AddedToken("word", special=False, normalized=False, single_word=True),
            AddedToken("NORM", special=False, normalized=True), *special]


def texts(seed):
    rng = random.Random(seed)
    pool = [c for t in TEXTS for c in t]
    extra = ["".join(rng.choices(pool, k=rng.randint(1, 60))) for _ in range(40)]
    return TEXTS + extra + list(corpus(seed, 12))


def valid_byte_runs(tok, ids):
    """Whether no run of byte tokens is cut: there the two implementations differ on purpose (see tokenizer.h)."""
    run = b""
    for token in [tok.id_to_token(i) or "" for i in ids] + [""]:
        if len(token) == 6 and token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


def save(name, tok, seed):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encode = []
    for text in texts(seed):
        tok.encode_special_tokens = False
        ids = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = True
        as_text = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        encode.append({"text": text, "ids": ids, "ids_special_as_text": as_text, "decoded": tok.decode(ids, skip_special_tokens=False),
                       "decoded_skip_special": tok.decode(ids, skip_special_tokens=True)})
    rng = random.Random(seed)
    decode = []
    for _ in range(60):
        ids = [rng.randrange(tok.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        if valid_byte_runs(tok, ids):
            decode.append({"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
    write_cases(folder, encode, decode)


def compact(case):
    """A line. What stands in it already is left out, or `true` (tests/support/tokenizer_cases.h)."""
    short = dict(case)
    if short.get("ids_special_as_text") == case["ids"]:
        del short["ids_special_as_text"]
    if "decoded" in case and case["decoded"] == case.get("text"):
        short["decoded"] = True
    if "decoded_skip_special" in case and case["decoded_skip_special"] == case["decoded"]:
        short["decoded_skip_special"] = True
    return json.dumps(short, separators=(",", ":"), ensure_ascii=False)


def write_cases(folder, encode, decode):
    lines = ["{\"encode\": [", ",\n".join(compact(c) for c in encode), "], \"decode\": [", ",\n".join(compact(c) for c in decode), "]}"]
    (folder / "cases.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sentencepiece_style(vocab_size, normalizer, pre_tokenizer, decoder):
    """BPE with byte fallback whose merges were learnt on words that begin with the space mark."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    counts = collections.Counter("".join(corpus()))
    # Given in full: the trainer breaks ties between equally frequent characters at random.
    alphabet = ["\u2581"] + sorted(set(counts) - set(" \n"), key=lambda c: (-counts[c], c))[:69]
    base.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab_size - 259, initial_alphabet=alphabet, limit_alphabet=70,
                                                           show_progress=False))
    learnt = json.loads(base.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + sorted(learnt["vocab"], key=learnt["vocab"].get)
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m) for m in learnt["merges"]], unk_token="<unk>", fuse_unk=True,
                               byte_fallback=True))
    if normalizer:
        tok.normalizer = normalizer
    if pre_tokenizer:
        tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoder
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tok.add_tokens(added())
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tok


def byte_level(vocab_size, pre_tokenizer, normalizer=None, special=("<s>", "</s>"), **options):
    tok = Tokenizer(models.BPE(**options))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                          special_tokens=list(special), show_progress=False))
    tok.add_tokens(added())
    return tok


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def main():
    mark = "\u2581"
    llama_decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    save("llama2", sentencepiece_style(800, normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)]), None, llama_decoder), 1)
    save("metaspace", sentencepiece_style(800, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama_decoder), 2)
    save("metaspace_split", sentencepiece_style(700, normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
                                                decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])), 3)
    level = lambda **options: pre_tokenizers.ByteLevel(**options)
    llama3 = byte_level(800, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), level(add_prefix_space=False, use_regex=False)]))
    model = json.loads(llama3.to_str())
    model["added_tokens"] = model["added_tokens"][:2]
    # Words that the merges alone would not reach: what ignore_merges is for.
    model["model"]["ignore_merges"] = True
    size = len(model["model"]["vocab"])
    for n, token in enumerate(["Ġswordfish", "trailing", "1234567890", "Ġvu"]):
        model["model"]["vocab"][token] = size + n
    llama3 = Tokenizer.from_str(json.dumps(model))
    llama3.add_tokens(added())
    save("llama3", llama3, 4)
    save("gpt2", byte_level(700, level(add_prefix_space=False, use_regex=True)), 5)
    save("gpt2_prefix", byte_level(600, level(add_prefix_space=True, use_regex=True)), 6)
    save("falcon", byte_level(800, pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), level(add_prefix_space=False, use_regex=True),
                                                            pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])), 7)
    save("qwen2", byte_level(800, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), level(add_prefix_space=False, use_regex=False)]),
                             normalizers.NFC()), 8)
    save("pieces", byte_level(600, pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_previous"),
                                                            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("a", "merged_with_next"),
                                                            pre_tokenizers.Split(Regex("[eo]+"), "removed", invert=False),
                                                            level(add_prefix_space=False, use_regex=False)]),
                              normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(),
                                                    normalizers.Replace(Regex(r"\s{2,}"), " ")])), 9)
    sentencepiece_model()


def sentencepiece_model():
    folder = OUT / "sentencepiece"
    folder.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=(line for line in corpus()), model_writer=out, vocab_size=700, model_type="bpe", byte_fallback=True,
                                             character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
                                             minloglevel=2)
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    encode = []
    for text in texts(10):
        if any(t in text for t in ("<s>", "</s>", "<unk>")) or "\u2581" in text or "\u0000" in text:
            continue
        ids = processor.encode(text)
        decoded = processor.decode(ids)
        encode.append({"text": text, "ids": ids, "ids_special_as_text": ids, "decoded": decoded, "decoded_skip_special": decoded})
    for text, ids in [("<s>hello", [1] + processor.encode("hello")), ("a</s>b", processor.encode("a") + [2] + processor.encode("b"))]:
        encode.append({"text": text, "ids": ids, "ids_special_as_text": processor.encode(text)})
    write_cases(folder, encode, [])


if __name__ == "__main__":
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
    main()
    tokenizer_families.save_all(sys.modules["__main__"])
