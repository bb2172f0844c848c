// `headwise`: everything.
#include "commands.h"

namespace headwise {

std::span<const AddCommand> Commands() {
  static constexpr AddCommand kCommands[] = {
      AddRunCommand,         //
      AddChatCommand,        //
      AddServeCommand,       //
      AddInspectCommand,     //
      AddLogitsCommand,      //
      AddTokenizeCommand,    //
      AddPlanCommand,        //
      AddEvalCommand,        //
      AddBenchCommand,       //
      AddBenchServeCommand,  //
      AddQuantizeCommand,    //
  };
  return kCommands;
}

}  // namespace headwise
