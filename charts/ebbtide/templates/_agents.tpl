{{/*
The kinds of agents. A node has one agent at most: those of the trainer, of scorers and of
environments go to the nodes with their labels, all others keep off them.
*/}}

{{/* The kinds with nodes of their own. */}}
{{- define "ebbtide.agentKinds" -}}
{{- toYaml (dict "kinds" (list "trainer" "reward" "environment")) -}}
{{- end -}}

{{/* All kinds as parts, under `parts`; those with nodes of their own only where they are wanted. */}}
{{- define "ebbtide.agentParts" -}}
{{- $parts := list (include "ebbtide.workerPart" . | fromYaml) -}}
{{- range $kind := (include "ebbtide.agentKinds" . | fromYaml).kinds -}}
{{- if (get $.Values.agent $kind).nodeSelector -}}
{{- $parts = append $parts (include "ebbtide.ownPart" (dict "context" $ "kind" $kind) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "parts" $parts) -}}
{{- end -}}

{{/* Agents of the nodes that work, as a part. Their account is that of all kinds. */}}
{{- define "ebbtide.workerPart" -}}
{{- $values := deepCopy .Values.agent -}}
{{- $_ := set $values "affinity" (include "ebbtide.affinityOffOthers" . | fromYaml) -}}
{{- $_ := set $values "role" "rollout" -}}
{{- if not (kindIs "slice" $values.engines) -}}
{{- $hosted := printf "http://$(NODE_IP):%d" (int .Values.workers.port) -}}
{{- $engine := ternary $hosted "http://127.0.0.1:8000" (not (not .Values.workers.groups)) -}}
{{- $_ := set $values "engines" (list $engine) -}}
{{- end -}}
{{- toYaml (dict "component" "agent" "name" (include "ebbtide.agent" .) "values" $values) -}}
{{- end -}}

{{/*
Agents of nodes of a kind of their own: as the others, without engines. Those of the trainer have no
socket, for nobody leases there.
*/}}
{{- define "ebbtide.ownPart" -}}
{{- $values := deepCopy .context.Values.agent -}}
{{- range $key, $value := get .context.Values.agent .kind -}}
{{- $_ := set $values $key $value -}}
{{- end -}}
{{- $_ := set $values "affinity" dict -}}
{{- $_ := set $values "engines" list -}}
{{- $_ := set $values "findEngines" false -}}
{{- if eq .kind "trainer" -}}
{{- $_ := set $values "socket" (dict "enabled" false) -}}
{{- end -}}
{{- $_ := set $values "role" .kind -}}
{{- $name := include "ebbtide.ownAgent" . -}}
{{- toYaml (dict "component" (printf "%s-agent" .kind) "name" $name "values" $values) -}}
{{- end -}}

{{/*
agent.affinity, and not where agents of another kind go: a node is theirs when it has all labels of
their kind, so it is not when it lacks one of them, whichever. Terms stand for one another.
*/}}
{{- define "ebbtide.affinityOffOthers" -}}
{{- $affinity := deepCopy (default dict .Values.agent.affinity) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- range $kind := (include "ebbtide.agentKinds" . | fromYaml).kinds -}}
{{- $labels := (get $.Values.agent $kind).nodeSelector -}}
{{- if $labels -}}
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
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}
