// How an answer is scored against its references: the metrics of LongBench [arXiv 2308.14508], written from their
// published definitions. All scores are in [0, 1]; text is UTF-8, what is said of letters and digits is about ASCII.
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
// the answer, recall LCS / words of the reference.
double RougeL(std::string_view answer, std::string_view reference);
// 1 - distance / (|a| + |b|), distance = fewest insertions and deletions of characters (Unicode code points) that turn
// one into the other: the "ratio" of two strings, 1 for equal ones, two empty ones among them.
double EditSimilarity(std::string_view answer, std::string_view reference);
// LongBench's code score: EditSimilarity of the answer's first line that is not blank and no comment ("//" or "#" in
// front, or a "```" fence) with the reference.
double CodeSimilarity(std::string_view answer, std::string_view reference);
// Of the numbers in the answer, the share that equals the reference's number; 0 without numbers.
double CountScore(std::string_view answer, std::string_view reference);
// LongBench's classification score: the classes named in the answer, without those that are part of another named
// class which is not the reference; 1 / their number if the reference is among them, else 0.
double ClassScore(std::string_view answer, std::string_view reference, std::span<const std::string> all_classes);

// Does `answer` hold `expected` as a whole: not inside a longer word or number ("123" is not in "41234", and "1.5" not
// in "11.5" or "1.55"; "123." and "(123)" hold 123). Case counts.
bool HoldsWhole(std::string_view answer, std::string_view expected);

}  // namespace headwise

#endif  // HEADWISE_EVAL_METRICS_H_
