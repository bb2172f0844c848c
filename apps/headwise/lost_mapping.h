// What becomes of the program when a file that it has mapped becomes shorter.
#ifndef HEADWISE_APPS_LOST_MAPPING_H_
#define HEADWISE_APPS_LOST_MAPPING_H_

namespace headwise {

// From here on the end is a message that names the file, and exit status 1, in place of a signal.
void ReportLostMappings();

}  // namespace headwise

#endif  // HEADWISE_APPS_LOST_MAPPING_H_
