// A text for the examples that the bundled model can answer questions about: lines with a number each, as in LongEval.
#ifndef HEADWISE_EXAMPLES_RECORD_H_
#define HEADWISE_EXAMPLES_RECORD_H_

#include <string>

inline std::string LineName(int line) {
  static const char* const kColours[] = {"amber", "copper",  "crimson", "golden",
                                         "ivory", "scarlet", "silver",  "velvet"};
  static const char* const kThings[] = {"anchor", "basket",  "candle", "engine",  "falcon", "garden",
                                        "hammer", "island",  "jacket", "kettle",  "ladder", "mirror",
                                        "needle", "orchard", "pencil", "rabbit",  "saddle", "teapot",
                                        "tunnel", "violin",  "wagon",  "whistle", "window", "bridge"};
  return std::string(kColours[line % 8]) + "-" + kThings[line / 8 % 24];
}

inline int LineNumber(int line) {
  return 10007 + line * 7919 % 39983;
}

// At most 192 lines, about 16 tokens each.
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
