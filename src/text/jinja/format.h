// Python's two ways to fill in text: '%s' % x, and '{}'.format(x).
#ifndef HEADWISE_TEXT_JINJA_FORMAT_H_
#define HEADWISE_TEXT_JINJA_FORMAT_H_

#include <headwise/status.h>

#include "text/jinja/call_args.h"
#include "text/jinja/value.h"

namespace headwise::jinja {

// %s %r %d %i %x %X %o %f %e %g %c %%, with flags, width and precision; %(name)s of a dict.
Result<Value> FormatPercent(Interpreter& interpreter, const MarkedString& form, const Value& values);

// {} {0} {name} {0.attribute} {name[key]} with !r and !s, and fill, alignment, width, precision and type behind a
// colon.
Result<Value> FormatBraces(Interpreter& interpreter, const MarkedString& form, const CallArgs& args);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_FORMAT_H_
