// How an answer is scored against its references: the metrics of LongBench [arXiv 2308.14508], written from their
// published definitions. All scores are in [0, 1]; text is UTF-8, and a byte that is part of no character counts as
// one. What is said of letters and digits is about ASCII unless it says otherwise.
#ifndef HEADWISE_EVAL_METRICS_H_
#define HEADWISE_EVAL_METRICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Lower case, ASCII punctuation removed, the words "a", "an", "the" removed, split at white space: SQuAD's
// normalisation, before F1 and exact match.
std::vector<std::string> NormalisedWords(std::string_view text);

// Harmonic mean of precision and recall of the normalised words, counted with multiplicity. 0 where nothing is shared;
// two texts without words are equal: 1.
double TokenF1(std::string_view answer, std::string_view reference);
// 1 if the normalised words are the same in the same order, else 0.
double ExactMatch(std::string_view answer, std::string_view reference);
// F1 of the longest common subsequence over the words as they stand, split at white space: precision LCS / words of
// the answer, recall LCS / words of the reference. Two texts without words: 1.
double RougeL(std::string_view answer, std::string_view reference);
// 1 - distance / (|a| + |b|), distance = fewest insertions and deletions of characters (Unicode code points) that turn
// one into the other: the "ratio" of two strings, 1 for equal ones, two empty ones among them.
double EditSimilarity(std::string_view answer, std::string_view reference);
// LongBench's code score: EditSimilarity of the answer's first line that is not blank and no comment ("//" or "#" in
// front, or a "```" fence) with the reference. Its script skips lines that hold one of these (or one "`") anywhere, so
// that `url = "http://x"` is never compared; here such a line is code.
double CodeSimilarity(std::string_view answer, std::string_view reference);
// Of the numbers (runs of digits) in the answer, the share that equals the reference's first number, digit by digit; 0
// where either has none.
double CountScore(std::string_view answer, std::string_view reference);
// LongBench's classification score: the classes named in the answer, without those that are a part of the reference but
// not all of it (naming the reference names them too); 1 / their number if the reference is among them, else 0.
double ClassScore(std::string_view answer, std::string_view reference, std::span<const std::string> all_classes);

// Does `answer` hold `expected` as a whole: not inside a longer word or number ("123" is not in "41234", and "1.5" not
// in "11.5" or "1.55"; "123." and "(123)" hold 123). Case counts. Where it is in doubt whether a word or number goes
// on, it does:
// - letters and digits stick together ("5km" does not hold 5), in every script that puts spaces between words;
// - so do they across one hyphen or underscore ("twenty-one", "3-5", "x_1"), but "_one_" holds "one";
// - digits go on across one point or comma: "1,234" holds neither 1 nor 234, and "1, 234" both;
// - a "-" or a decimal point in front belongs to a number: neither "-5" nor ".5" holds 5.
// Nothing holds an `expected` that is empty or all white space.
bool HoldsWhole(std::string_view answer, std::string_view expected);

}  // namespace headwise

#endif  // HEADWISE_EVAL_METRICS_H_
