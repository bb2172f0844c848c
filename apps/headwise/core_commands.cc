// `headwise-core`: what runs models, without planners, evaluation and benches. It links headwise_core alone, and is
// there long before the rest is compiled.
#include "commands.h"

namespace headwise {

std::span<const AddCommand> Commands() {
  static constexpr AddCommand kCommands[] = {
      AddRunCommand,       //
      AddChatCommand,      //
      AddInspectCommand,   //
      AddLogitsCommand,    //
      AddTokenizeCommand,  //
      AddQuantizeCommand,  //
  };
  return kCommands;
}

}  // namespace headwise
