"""An agent as it may exist already: it knows a base URL, and nothing of Gym. Its answer is what it prints.

gym conformance --command 'python examples/programs/plain_agent.py {prompt}'
"""

import sys

from openai import OpenAI

client = OpenAI(max_retries=2)  # OPENAI_BASE_URL and OPENAI_API_KEY are set for it
answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": sys.argv[1]}])
print(answer.choices[0].message.content)
