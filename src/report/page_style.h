// The report's CSS.
#ifndef HEADWISE_REPORT_PAGE_STYLE_H_
#define HEADWISE_REPORT_PAGE_STYLE_H_

#include <string_view>

namespace headwise {

// Colours of plans are --p0 to --p9 in the order of plan_styles.cc: chosen so that any two stay apart under the common
// forms of colour blindness and against the page in both themes.
std::string_view PageStyle();

}  // namespace headwise

#endif  // HEADWISE_REPORT_PAGE_STYLE_H_
