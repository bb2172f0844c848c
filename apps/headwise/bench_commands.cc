// `headwise-bench`: what runs and times models, without planners and evaluation.
#include "commands.h"

namespace headwise {

std::span<const AddCommand> Commands() {
  static constexpr AddCommand kCommands[] = {
      AddRunCommand,       //
      AddChatCommand,      //
      AddInspectCommand,   //
      AddLogitsCommand,    //
      AddTokenizeCommand,  //
      AddBenchCommand,     //
      AddQuantizeCommand,  //
  };
  return kCommands;
}

}  // namespace headwise
