{{/*
The two kinds of agents. A node has one agent at most: those of the trainer go to the nodes with its
labels, all others keep off them.
*/}}

{{/* Both kinds as parts, under `parts`; the second one only where it is wanted. */}}
{{- define "ebbtide.agentParts" -}}
{{- $parts := list (include "ebbtide.workerPart" . | fromYaml) -}}
{{- if .Values.agent.trainer.nodeSelector -}}
{{- $parts = append $parts (include "ebbtide.trainerPart" . | fromYaml) -}}
{{- end -}}
{{- toYaml (dict "parts" $parts) -}}
{{- end -}}

{{/* Agents of the nodes that work, as a part. Their account is that of both kinds. */}}
{{- define "ebbtide.workerPart" -}}
{{- $values := deepCopy .Values.agent -}}
{{- $_ := set $values "affinity" (include "ebbtide.affinityOffTrainer" . | fromYaml) -}}
{{- $_ := set $values "role" "rollout" -}}
{{- if not (kindIs "slice" $values.engines) -}}
{{- $hosted := printf "http://$(NODE_IP):%d" (int .Values.workers.port) -}}
{{- $engine := ternary $hosted "http://127.0.0.1:8000" (not (not .Values.workers.groups)) -}}
{{- $_ := set $values "engines" (list $engine) -}}
{{- end -}}
{{- toYaml (dict "component" "agent" "name" (include "ebbtide.agent" .) "values" $values) -}}
{{- end -}}

{{/* Agents of the trainer's nodes: as the others, without what these have for their work. */}}
{{- define "ebbtide.trainerPart" -}}
{{- $values := deepCopy .Values.agent -}}
{{- range $key, $value := .Values.agent.trainer -}}
{{- $_ := set $values $key $value -}}
{{- end -}}
{{- $_ := set $values "affinity" dict -}}
{{- $_ := set $values "engines" list -}}
{{- $_ := set $values "findEngines" false -}}
{{- $_ := set $values "socket" (dict "enabled" false) -}}
{{- $_ := set $values "role" "trainer" -}}
{{- $name := include "ebbtide.trainerAgent" . -}}
{{- toYaml (dict "component" "trainer-agent" "name" $name "values" $values) -}}
{{- end -}}

{{/*
agent.affinity, and not where the agents of the trainer go: a node is theirs when it has all labels
of the trainer, so it is not when it lacks one of them, whichever. Terms stand for one another.
*/}}
{{- define "ebbtide.affinityOffTrainer" -}}
{{- $affinity := deepCopy (default dict .Values.agent.affinity) -}}
{{- $labels := .Values.agent.trainer.nodeSelector -}}
{{- if $labels -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $nodes := default dict $affinity.nodeAffinity -}}
{{- $terms := list -}}
{{- range $term := default (list dict) (get (default dict (get $nodes $required)) "nodeSelectorTerms") -}}
{{- range $key, $value := $labels -}}
{{- $lacks := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
{{- $all := append (default list $term.matchExpressions) $lacks -}}
{{- $terms = append $terms (set (deepCopy $term) "matchExpressions" $all) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $nodes $required (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}
