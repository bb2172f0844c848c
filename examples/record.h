// A text for the examples that the bundled model can answer questions about: lines with a number each, as in LongEval.
#ifndef HEADWISE_EXAMPLES_RECORD_H_
#define HEADWISE_EXAMPLES_RECORD_H_

#include <string>

// Names of two words; close neighbours share neither.
inline std::string LineName(int line) {
  static const char* const kAdjectives[] = {
      "amber", "ancient", "arctic",  "autumn", "bitter", "brisk",   "calm",   "copper", "crimson", "curious",
      "dusty", "eager",   "faded",   "foggy",  "gentle", "golden",  "hidden", "ivory",  "jolly",   "lucky",
      "misty", "noble",   "patient", "quiet",  "rustic", "scarlet", "silent", "sleepy", "velvet",  "wooden"};
  static const char* const kNouns[] = {"anchor", "basket",  "bridge", "candle", "castle", "engine", "falcon",
                                       "garden", "hammer",  "island", "jacket", "kettle", "ladder", "mirror",
                                       "needle", "orchard", "pencil", "rabbit", "saddle", "teapot"};
  return std::string(kAdjectives[line % 30]) + "-" + kNouns[(line + line / 30) % 20];
}

// Five digits that follow no pattern.
inline int LineNumber(int line) {
  const unsigned mixed = (static_cast<unsigned>(line) + 1) * 2654435761u;
  return 10000 + static_cast<int>((mixed ^ mixed >> 15) * 2246822519u >> 12) % 40000;
}

// At most 600 lines, about 17 tokens each.
inline std::string MakeRecord(int num_lines) {
  std::string text =
      "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
      "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
      "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
      "<REGISTER_CONTENT> of a certain line index. Now the record start:\n\n";
  for (int line = 0; line < num_lines; ++line) {
    text += "line " + LineName(line) + ": REGISTER_CONTENT is <" + std::to_string(LineNumber(line)) + ">\n";
  }
  return text;
}

inline std::string MakeQuestion(int line) {
  return "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line " + LineName(line) +
         "? I need the number. ";
}

#endif  // HEADWISE_EXAMPLES_RECORD_H_
