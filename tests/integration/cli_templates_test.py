#!/usr/bin/env python3
"""headwise run and chat with chat templates: where they come from, what reaches them, what is read again."""
import json
import re

from cli_support import MODEL, CliTest, main

EXACT = ("--compute", "f32")
CHATML = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
# Its beginning says how long the conversation is.
COUNTING = "{{- messages | length }}" + CHATML


class Templates(CliTest):
    def model(self, template, name="variant", **config):
        return self.model_variant(name, **{"tokenizer_config.json": json.dumps({"chat_template": template, **config}).encode()})

    def file(self, text, name="t.jinja"):
        path = self.path / name
        path.write_text(text)
        return path

    def lines(self, *lines):
        return self.file("".join(json.dumps(line) + "\n" for line in lines), "prompts.jsonl")

    def tokens(self, model, *options):
        return json.loads(self.succeeds("run", "--model", model, "--chat", "--prompt", "Hello.", "-n", 12, "--json", *EXACT,
                                        *options).stdout)

    def prefills(self, model, *messages, options=()):
        """How many tokens every turn reads, and the answers."""
        done = self.succeeds("chat", "--model", model, "-n", 8, "--stats", *EXACT, *options,
                             stdin="".join(each + "\n" for each in messages).encode())
        return [int(each) for each in re.findall(r"prefill +(\d+) tokens", done.stderr.decode())], done.stdout

    def test_the_models_own_is_used(self):
        built_in = self.tokens(MODEL)
        for key in ("prompt_tokens", "tokens", "finish"):
            self.assertEqual(self.tokens(self.model(CHATML, key))[key], built_in[key])
            self.assertEqual(self.tokens(MODEL, "--chat-template", self.file(CHATML))[key], built_in[key])
        counting = self.model(COUNTING)
        self.assertGreater(self.tokens(counting)["prompt_tokens"], built_in["prompt_tokens"])
        self.assertEqual(self.tokens(counting, "--chat-form", "chatml")["tokens"], built_in["tokens"])
        self.assertEqual(self.tokens(counting, "--chat-template", self.file(CHATML))["tokens"], built_in["tokens"])
        # A .gguf file has it too.
        gguf = self.path / "counting.gguf"
        self.succeeds("quantize", "--model", counting, "--type", "f16", "--out", gguf)
        self.assertEqual(self.tokens(gguf)["prompt_tokens"], self.tokens(counting)["prompt_tokens"])

    def test_a_conversation_goes_on(self):
        messages = ("Hello.", "And again?", "Once more.")
        built_in, answers = self.prefills(MODEL, *messages)
        self.assertEqual((built_in, answers), self.prefills(self.model(CHATML), *messages))
        self.assertLess(max(built_in[1:]), 20)
        # What is rewritten is read again, all of it.
        counting, _ = self.prefills(self.model(COUNTING, "counting"), *messages)
        self.assertEqual(len(counting), 3)
        self.assertGreater(counting[1], counting[0] + built_in[1])
        self.assertGreater(counting[2], counting[1] + built_in[2])

    def test_what_reaches_the_template(self):
        shows = self.file("{{ raise_exception(tools | tojson ~ documents | tojson ~ style ~ messages | tojson) }}")
        run = ("run", "--model", MODEL, "--chat-template", shows)
        tools, documents = self.file('[{"z": 1, "a": 2}]', "tools.json"), self.file('[{"text": "d"}]', "documents.json")
        self.refuses(*run, "--chat", "--prompt", "Hello.", "--tools", tools, "--documents", documents, "--chat-template-kwargs",
                     '{"style": "plain"}', says='[{"z": 1, "a": 2}][{"text": "d"}]plain[{"role": "user", "content": "Hello."}]')
        messages = [{"role": "developer", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"z": 1, "a": 2}]},
                    {"role": "tool", "tool_call_id": "7", "content": ""}]
        line = {"messages": messages, "tools": [3], "documents": [4], "chat_template_kwargs": {"style": "own"}}
        self.refuses(*run, "--prompts", self.lines(line), "--tools", tools,
                     says=["prompts.jsonl:1: ", "t.jinja: line 1: the template says: [3][4]own" + json.dumps(messages)])
        # What a line does not have comes from the options.
        self.refuses(*run, "--prompts", self.lines({"prompt": "x"}), "--chat", "--tools", tools, says='[{"z": 1, "a": 2}]null')

    def test_lines_with_messages_of_all_kinds(self):
        template = self.file("{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls }}{% endfor %}{{ tools }}")
        line = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": ["f"]},
                             {"role": "tool", "content": "y"}], "tools": []}
        done = self.succeeds("run", "--model", MODEL, "--prompts", self.lines(line), "-n", 2, "--chat-template", template)
        self.assertGreater(json.loads(done.stdout)["prompt_tokens"], 5)
        self.refuses("run", "--model", MODEL, "--prompts", self.lines(line), says=["prompts.jsonl:1: chat form chatml", "tools"])
        del line["tools"]
        self.refuses("run", "--model", MODEL, "--prompts", self.lines(line), says=["prompts.jsonl:1: chat form chatml", "message"])

    def test_what_is_wrong_is_named(self):
        run = ("run", "--model", MODEL, "--prompt", "x")
        broken = self.model("\n{% for %}")
        self.refuses("run", "--model", broken, "--prompt", "x", "--chat",
                     says=["tokenizer_config.json: chat_template: line 2: ", "--chat-form"])
        self.refuses("chat", "--model", broken, says=["tokenizer_config.json: chat_template: line 2: ", "--chat-form"])
        self.succeeds("run", "--model", broken, "--prompt", "x", "-n", 1)
        self.succeeds("run", "--model", broken, "--prompt", "x", "-n", 1, "--chat", "--chat-form", "chatml")
        good = self.file(CHATML)
        self.refuses(*run, "--chat", "--chat-template", self.path / "nowhere", says="nowhere")
        self.refuses(*run, "--chat", "--chat-template", good, "--chat-form", "chatml", status=2, says="--chat-form")
        self.refuses(*run, "--chat-template", good, says="--chat-template: found neither --chat nor --prompts")
        self.refuses(*run, "--chat", "--chat-template-kwargs", "[]", says="--chat-template-kwargs: found a JSON array, expected an object")
        self.refuses(*run, "--chat", "--chat-template-kwargs", "{", says="--chat-template-kwargs: not valid JSON")
        self.refuses(*run, "--chat", "--chat-template-kwargs", '{"a": 1}', says="--chat-template-kwargs: the chat form chatml")
        self.refuses("chat", "--model", MODEL, "--chat-template-kwargs", '{"a": 1}', says="the chat form chatml has no use")
        self.refuses(*run, "--chat", "--chat-template", good, "--chat-template-kwargs", '{"a": 1}', says="t.jinja: a: the template")
        self.refuses(*run, "--chat", "--tools", self.file("{}", "tools.json"), says="tools.json: found object, expected a list")
        message = {"messages": [{"role": "user", "content": "x"}]}
        for bad, says in (({**message, "tools": {}}, "tools: found object, expected array"), ({"prompt": "x", "tools": []}, "beside a prompt"),
                          ({**message, "chat_template_kwargs": []}, "chat_template_kwargs: found array, expected object")):
            self.refuses("run", "--model", self.path / "nowhere", "--prompts", self.lines(bad), says=["prompts.jsonl:1: ", says])
        self.refuses("run", "--model", MODEL, "--prompts", self.lines({"prompt": "x"}), "--chat-template", good,
                     says="--chat-template: no line of")


if __name__ == "__main__":
    main()
